"""Artifacts for boards, and for this machine to compare with: each is built once a test run."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gfcompile
from gfcompile.codegen.link import find_missing
from gfcompile.targets import find_target
from tests.missing import skip_for_want
from tests.models import randomise_statistics
from tests.models.mobilenet import mobilenet_v2
from tests.models.resnet import resnet18
from tests.runtime.harness import read_state, write_arrays

BOARDS = ("rpi3", "rpi4")
MODELS = {"resnet18": resnet18, "mobilenet_v2": mobilenet_v2}
CLASSES, RATE, STEPS = 10, 0.01, 3
SYSROOT = Path("/usr/aarch64-linux-gnu")


def need(program: str, package: str) -> str:
    """The program's path; without it the test is skipped."""
    found = shutil.which(program)
    if found is None:
        skip_for_want(f"{program} is not installed; apt install {package}")
    return found


def emulator(board: str) -> list[str]:
    """The command before a program of the board, with the board's own CPU."""
    program, *options = find_target(board).emulator
    need(program, "qemu-user-static")
    if not (SYSROOT / "lib").is_dir():
        skip_for_want(f"{SYSROOT} does not exist; apt install libc6-arm64-cross")
    return [program, *options, "-L", str(SYSROOT)]


@dataclass(frozen=True)
class Reference:
    """What the x86 artifact did: its losses, its state after them, and the files for a C program that does the same."""

    losses: np.ndarray
    state: dict[str, np.ndarray]  # as the library keeps it, in its order
    arrays: Path


class Builds:
    """Makes artifacts when a test asks for them, once for all processes of a test run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def reference(self, model: str) -> Reference:
        with self._alone(model):
            if not self._results(model).exists():
                self._train_here(model)
        with np.load(self._results(model)) as found:
            return Reference(
                found["losses"], {name: found[name] for name in found if name != "losses"}, self._arrays(model)
            )

    def artifact(self, model: str, board: str) -> Path:
        missing = find_missing(find_target(board))
        if missing is not None:
            skip_for_want(f"the linker of target {board} is not installed; {missing}")
        out = self.folder / f"{model}_{board}"
        with self._alone(out.name):
            if not out.exists():
                module, x, _ = make_model(model)
                gfcompile.build(module, x, layers=4, r=2, lr=RATE, target=board, out=out)
        return out

    @contextlib.contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        with (self.folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _arrays(self, model: str) -> Path:
        return self.folder / f"{model}_arrays"

    def _results(self, model: str) -> Path:
        return self.folder / f"{model}.npz"

    def _train_here(self, model: str) -> None:
        module, x, y = make_model(model)
        out = self.folder / f"{model}_native"
        with gfcompile.compile(module, x, layers=4, r=2, lr=RATE, out=out) as step:
            write_arrays(step, x.numpy(), y.numpy(), self._arrays(model))
            losses = [step.train(x, y) for _ in range(STEPS)]
            entries = zip(step.manifest["state"], read_state(step), strict=True)
            state = {entry["name"]: kept.view(entry["dtype"]) for entry, kept in entries}
            np.savez(self._results(model), losses=losses, **state)


def make_model(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    """With a batch; the same every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = randomise_statistics(MODELS[name](CLASSES), seed=0)
        return model, torch.randn(2, 3, 64, 64), torch.randint(0, CLASSES, (2,))


@pytest.fixture(scope="session")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Builds:
    base = tmp_path_factory.getbasetemp()
    return Builds((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "boards")
