"""A sparse step for a Raspberry Pi under an emulator of its CPU: it draws the channels that x86 draws. No speed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from gfcompile.runtime import tensorfile
from tests.boards.conftest import emulator
from tests.end_to_end.test_sparse import SGD, SHARE, artifact, batch
from tests.store import Store
from tests.tolerances import TRAINING_STEPS, assert_near

pytestmark = pytest.mark.coverage
STEPS = 3


def test_gf_train_draws_and_trains_as_on_x86(store: Store, tmp_path: Path) -> None:
    command = emulator("rpi3")
    x, y = batch()
    np.save(tmp_path / "x.npy", x.numpy())
    np.save(tmp_path / "y.npy", y.numpy())
    options = ["--data", "x.npy", "--labels", "y.npy", "--epochs", str(STEPS), "--seed", "4"]
    found = {}
    here = artifact(store, sparse=SHARE, exact=False, **SGD)
    board = artifact(store, sparse=SHARE, exact=False, target="rpi3", **SGD)
    for target, folder, words in (("native", here, []), ("rpi3", board, command)):
        trainer = [*words, str(folder / "gf-train")]
        for line in ([*trainer, "--selftest"], [*trainer, *options, "--checkpoint", f"{target}.ckpt"]):
            done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
        found[target] = tensorfile.read(tmp_path / f"{target}.ckpt")
    assert found["rpi3"].metadata["draws"] == found["native"].metadata["draws"] == f"seed 4 steps {STEPS} epoch 2"
    start = tensorfile.read(here / "weights.safetensors").tensors
    for name, expected in found["native"].tensors.items():
        assert_near(found["rpi3"].tensors[name], expected, TRAINING_STEPS, name)
        if name.startswith("parameter/"):
            old = start[name.removeprefix("parameter/")]
            untouched = [array == old for array in (found["rpi3"].tensors[name], expected)]
            np.testing.assert_array_equal(*untouched, err_msg=f"{name}: other channels were updated")
