"""A sparse step for a Jetson in the emulator of the GPU, with races checked: as on the CPU. No speed."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gfcompile.compiler import write_step
from gfcompile.frontend.losses import resolve_loss
from gfcompile.job import Job
from gfcompile.optimizers import resolve_optimizer
from gfcompile.runtime.step import Step
from gfcompile.settings.schema import Request
from gfcompile.targets import find_target
from tests.cuda.emulator import build, build_driver, driver_environment
from tests.end_to_end.test_sparse import LR, SGD, SHAPE, SHARE, Net, artifact, batch
from tests.lean import analyse_lean
from tests.store import Store
from tests.tolerances import TRAINING_STEPS, assert_near

pytestmark = pytest.mark.coverage
HERE = Path(__file__).parent
STEPS = 3


def test_three_steps_as_on_the_cpu(store: Store, tmp_path: Path) -> None:
    here, jetson = find_target("native"), find_target("jetson-nano")
    assert jetson.gpu is not None
    target = replace(jetson, tvm=here.tvm, link=here.link, glibc=None)
    optimizer = resolve_optimizer("sgd", SGD)
    job = Job(Net(), (torch.zeros(SHAPE),), resolve_loss("cross_entropy"), Request(sparse={"*": SHARE}), optimizer, LR)
    folders = {
        "cpu": artifact(store, sparse=SHARE, exact=False, **SGD),
        "cuda": write_step(analyse_lean(job, target), tmp_path / "cuda_step"),
    }
    x, y = batch()
    np.savez(tmp_path / "batch.npz", x=x.numpy(), y=y.numpy())
    source = (folders["cuda"] / "graphs" / "kernels.cu").read_text()
    kernels = build(source, tmp_path / "kernels.so", race_check=True)
    driver = build_driver(tmp_path)
    variables = driver_environment(driver, kernels, capability=jetson.gpu.capability, log=tmp_path / "calls.txt")
    words = [HERE / "train_artifact.py", folders["cuda"], tmp_path / "batch.npz", STEPS, tmp_path / "out.npz"]
    done = subprocess.run(
        [sys.executable, *map(str, words)], env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    with Step(folders["cpu"]) as step, np.load(tmp_path / "out.npz") as found:
        old = step.state_dict()
        assert_near(found["losses"], [step.train(x, y) for _ in range(STEPS)], TRAINING_STEPS, "losses")
        for name, expected in step.state_dict().items():
            assert_near(found[name], expected, TRAINING_STEPS, name)
            np.testing.assert_array_equal(found[name] == old[name], expected == old[name], err_msg=name)
