"""Whole training steps for Jetsons: what ptxas makes of them, and what they compute in the emulator of the GPU, through
the launcher and the stand-in driver. Correctness only: no speed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gfcompile.artifact.library import emit
from gfcompile.codegen.link import link_library
from gfcompile.compiler import write_step
from gfcompile.frontend.losses import resolve_loss
from gfcompile.job import Job
from gfcompile.settings.schema import Request
from gfcompile.targets import find_target
from tests.artifacts import ON_JETSONS, STEPS, Builds, make_model, tiny_net
from tests.cuda.emulator import build, build_driver, driver_environment
from tests.lean import analyse_lean
from tests.manifests import list_anew
from tests.tolerances import TRAINING_STEPS, assert_near

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent

each_artifact = pytest.mark.parametrize(("model", "jetson"), ON_JETSONS)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_driver(tmp_path_factory.mktemp("driver"))


@each_artifact
def test_three_steps_as_on_the_cpu(builds: Builds, driver: Path, tmp_path: Path, model: str, jetson: str) -> None:
    """With races checked. The stand-in takes the cubin only if it is for the GPU of this Jetson."""
    folder, reference = builds.artifact(model, jetson), builds.reference(model)
    kernels = build((folder / "graphs" / "kernels.cu").read_text(), tmp_path / "kernels.so", race_check=True)
    gpu = find_target(jetson).gpu
    assert gpu is not None
    _, x, y = make_model(model)
    np.savez(tmp_path / "batch.npz", x=x.numpy(), y=y.numpy())
    log = tmp_path / "calls.txt"
    variables = driver_environment(driver, kernels, capability=gpu.capability, log=log)
    command = [sys.executable, HERE / "train_artifact.py", folder, tmp_path / "batch.npz", STEPS, tmp_path / "out.npz"]
    done = subprocess.run(
        list(map(str, command)), env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "out.npz") as found:
        assert_near(found["losses"], reference.losses, TRAINING_STEPS, "losses")
        assert reference.losses[-1] < reference.losses[0]
        for name, expected in reference.weights.items():
            assert_near(found[name], expected, TRAINING_STEPS, name)
    assert log.read_text().splitlines()[-1] == "end: 0 allocations, 0 modules, 0 streams, 0 contexts"


@each_artifact
def test_no_kernel_spills(builds: Builds, model: str, jetson: str) -> None:
    report = json.loads((builds.artifact(model, jetson) / "report.json").read_text())["gpu"]
    gpu = find_target(jetson).gpu
    assert gpu is not None
    assert report["arch"] == gpu.arch
    assert len(report["kernels"]) > 50
    assert [row for row in report["kernels"] if row["spill_bytes"]] == []
    assert [row for row in report["kernels"] if not 0 < row["occupancy"] <= 1] == []
    products = [row for row in report["kernels"] if re.search("conv2d|matmul|channel_mix_", row["kernel"])]
    assert sum(row["shared_bytes"] > 0 for row in products) > 10


class Damaged:
    """A small step whose generated C can be edited; its own self-test, against PyTorch's numbers, is the judge."""

    def __init__(self, folder: Path) -> None:
        here = find_target("native")
        self.target = replace(find_target("jetson-nano"), tvm=here.tvm, link=here.link, glibc=None)
        job = Job(
            tiny_net(), (torch.randn(2, 3, 16, 16),), resolve_loss("cross_entropy"), Request(layers=2, r={"*": 2})
        )
        analysis = analyse_lean(job, self.target)
        self.artifact = write_step(analysis, folder / "tiny_step")
        self.sources = emit(analysis, folder / "sources", lambda _: None, name="tiny_step")
        assert self.sources.cuda is not None
        kernels = build(self.sources.cuda.source, folder / "kernels.so", race_check=True)
        self.environment = {**os.environ, **driver_environment(build_driver(folder / "driver"), kernels)}

    def check(self, pattern: str, replacement: str) -> tuple[int, str]:
        """Exit code and words of the self-test, with the first match in the stubs replaced."""
        (stubs,) = self.sources.objects
        edited, count = re.subn(pattern, replacement, stubs.read_text(), count=1)
        assert count == 1
        source = stubs.with_name("edited.c")
        source.write_text(edited)
        flags = self.sources.flags
        link_library(self.sources.driver, [source], self.artifact / "libstep.so", self.target, flags)
        list_anew(self.artifact, "libstep.so")
        command = [str(self.artifact / "gf-train"), "--selftest"]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Damaged:
    return Damaged(tmp_path_factory.mktemp("damaged"))


CONV = r"(int gf_kernel_fused_conv2d\w*\([^{]*{\s*if \(gf_cuda_launch\(\d+, )"


def test_the_self_test_passes_as_it_is(damaged: Damaged) -> None:
    code, words = damaged.check(CONV, r"\1")
    assert code == 0, words
    assert re.search(r"^PASS: \d+ checks$", words, re.MULTILINE)


@pytest.mark.parametrize(
    ("pattern", "replacement"),
    [
        pytest.param(CONV + r"(\d+), (\d+)", r"\g<1>\2, \3 / 2", id="half the grid"),
        pytest.param(CONV + r"(\d+), (\d+)", r"\g<1>\2, \3 + 40", id="a larger grid"),
        pytest.param(CONV + r"(.*?){&p0, &p1", r"\1\2{&p1, &p0", id="swapped arguments"),
        pytest.param(r"gf_cuda_launch\(1, ", "gf_cuda_launch(2, ", id="another kernel"),
    ],
)
def test_a_wrong_launch_is_caught(damaged: Damaged, pattern: str, replacement: str) -> None:
    code, words = damaged.check(pattern, replacement)
    assert code != 0
    assert "FAIL" in words or "out of bounds" in words or "race" in words or "launch" in words, words
