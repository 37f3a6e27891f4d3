"""gf-train of the boards' artifacts under an emulator of the board's own CPU, against the x86 artifact's. No speed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import gfcompile
from gfcompile.cli import main
from gfcompile.codegen.binary_check import needed_glibc
from gfcompile.runtime import tensorfile
from tests.artifacts import ON_BOARDS, STEPS, Builds, make_model
from tests.boards.conftest import emulator
from tests.lean import lean
from tests.tolerances import TRAINING_STEPS, assert_near

pytestmark = pytest.mark.slow
each_artifact = pytest.mark.parametrize(("model", "board"), ON_BOARDS)


def train(command: list[str | Path], folder: Path) -> list[float]:
    """One batch an epoch, so three epochs are three steps on it; returns the losses."""
    options = ["--data", "x.npy", "--labels", "y.npy", "--epochs", str(STEPS), "--checkpoint", "run.ckpt"]
    done = subprocess.run(
        [*map(str, command), *options, "--progress", "0"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"done after {STEPS} steps" in done.stdout
    return [float(line.split()[-1]) for line in done.stdout.splitlines() if line.startswith("step ")]


@each_artifact
def test_it_trains_as_on_x86(builds: Builds, tmp_path: Path, model: str, board: str) -> None:
    """The losses, and the trained weights as they come back through `gfcompile export`."""
    run = emulator(board)
    reference, folder = builds.reference(model), builds.artifact(model, board)
    _, x, y = make_model(model)
    states = {}
    for name, artifact, command in (
        ("here", builds.artifact(model, "native"), []),
        ("board", folder, run),
    ):
        place = tmp_path / name
        place.mkdir()
        np.save(place / "x.npy", x.numpy())
        np.save(place / "y.npy", y.numpy())
        losses = train([*command, artifact / "gf-train"], place)
        assert_near(losses, reference.losses, TRAINING_STEPS, f"losses {name}")
        words = [str(place / "run.ckpt"), "--artifact", str(artifact), "--state-dict", str(place / "out.safetensors")]
        assert main(["export", *words, "--quiet"]) == 0
        states[name] = tensorfile.read(place / "out.safetensors").tensors
    trained = json.loads((folder / "manifest.json").read_text())["gradients"]
    for name, expected in states["here"].items():
        if name in trained:
            assert_near(states["board"][name], expected, TRAINING_STEPS, name)
            start = tensorfile.read(folder / "weights.safetensors").tensors[name]
            assert not np.array_equal(states["board"][name], start), f"{name} was not trained"
        else:
            assert states["board"][name].tobytes() == expected.tobytes(), name


@pytest.mark.coverage
def test_a_static_trainer_needs_nothing_on_the_board(tmp_path: Path) -> None:
    """--libc musl: the program holds the step itself, and no C library of the board's is asked for."""
    command, *options = emulator("rpi3")[:-2]  # without the folder of shared libraries
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    with lean():
        folder = gfcompile.build(
            model, torch.zeros(2, 1, 8, 8), layers=1, target="rpi3", libc="musl", out=tmp_path / "static_step"
        )
    (folder / "libstep.so").unlink()
    done = subprocess.run(
        [command, *options, str(folder / "gf-train"), "--selftest"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "PASS: 5 checks"


@each_artifact
def test_the_self_test_passes(builds: Builds, model: str, board: str) -> None:
    folder = builds.artifact(model, board)
    done = subprocess.run(
        [*emulator(board), str(folder / "gf-train"), "--selftest"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    gradients = json.loads((folder / "manifest.json").read_text())["gradients"]
    assert done.stdout.splitlines()[-1] == f"PASS: {len(gradients) + 1} checks"
    assert needed_glibc(folder / "gf-train") == "2.17"
    dynamic = subprocess.run(["readelf", "-d", folder / "gf-train"], capture_output=True, text=True, check=True).stdout
    assert "[libpthread.so.0]" in dynamic  # an old glibc does not like threads that come later
    assert "libstep.so" not in dynamic  # the system would map it before anybody has looked at it
