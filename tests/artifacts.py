"""Artifacts of two networks for several targets, and what the one for this machine computes: each made once a run."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gfcompile
from gfcompile.artifact.write import build
from gfcompile.codegen.link import find_missing
from gfcompile.frontend.losses import resolve_loss
from gfcompile.job import Job
from gfcompile.plan import Request
from gfcompile.progress import silent
from gfcompile.targets import Target, find_target
from tests.lean import lower_lean, place_lean
from tests.missing import skip_for_want
from tests.models import randomise_statistics
from tests.models.mobilenet import mobilenet_v2
from tests.models.resnet import resnet18
from tests.runtime.harness import read_state, write_arrays

MODELS = {"resnet18": resnet18, "mobilenet_v2": mobilenet_v2}
BOARDS = ("rpi3", "rpi4")
JETSONS = ("jetson-nano", "jetson-tx2", "jetson-xavier", "jetson-orin")
TARGETS = {"cpu": ("native", *BOARDS), "cuda": JETSONS}
CLASSES, RATE, STEPS = 10, 0.01, 3


@dataclass(frozen=True)
class Reference:
    """What the artifact for this machine did: its losses, its state after them, and the files for a C program that does
    the same."""

    losses: np.ndarray
    state: dict[str, np.ndarray]  # as the library keeps it, in its order
    weights: dict[str, np.ndarray]  # as the model has them
    arrays: Path


class Builds:
    """Makes artifacts when a test asks for them, once for all processes of a test run.

    All targets of a kind are built together: lowering takes longest, and is the same for them.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def reference(self, model: str) -> Reference:
        native = self.artifact(model, "native")
        with self._alone(f"{model}_reference"):
            if not self._results(model, "state").exists():
                self._train_here(model, native)
        state = _load(self._results(model, "state"))
        losses = state.pop("losses")
        return Reference(losses, state, _load(self._results(model, "weights")), self._arrays(model))

    def artifact(self, model: str, target: str) -> Path:
        """Of a Jetson, the GPU's part with a library for this machine, which the emulator of the GPU runs on."""
        missing = find_missing(_machine(target))
        if missing is not None:
            skip_for_want(f"the linker of target {target} is not installed; {missing}")
        kind = find_target(target).kind
        with self._alone(f"{model}_{kind}"):
            if not self._place(model, target).exists():
                self._build_all(model, kind)
        return self._place(model, target)

    def _build_all(self, model: str, kind: str) -> None:
        module, x, _ = make_model(model)
        job = Job(module, (x,), resolve_loss("cross_entropy"), Request(4, {"*": 2}), lr=RATE)
        lowered = lower_lean(job, kind)
        for target in TARGETS[kind]:
            if find_missing(_machine(target)) is None:
                build(place_lean(lowered, _machine(target)), self._place(model, target), silent, {})

    @contextlib.contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        with (self.folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _place(self, model: str, target: str) -> Path:
        return self.folder / f"{model}_{target.replace('-', '_')}"

    def _arrays(self, model: str) -> Path:
        return self.folder / f"{model}_arrays"

    def _results(self, model: str, what: str) -> Path:
        return self.folder / f"{model}_{what}.npz"

    def _train_here(self, model: str, native: Path) -> None:
        _, x, y = make_model(model)
        with gfcompile.load(native) as step:
            write_arrays(step, x.numpy(), y.numpy(), self._arrays(model))
            losses = [step.train(x, y) for _ in range(STEPS)]
            entries = zip(step.manifest["state"], read_state(step), strict=True)
            state = {entry["name"]: kept.view(entry["dtype"]) for entry, kept in entries}
            np.savez(self._results(model, "weights"), **{k: v.numpy() for k, v in step.state_dict().items()})
            np.savez(self._results(model, "state"), losses=losses, **state)


def _machine(target: str) -> Target:
    found = find_target(target)
    if found.kind == "cpu":
        return found
    here = find_target("native")
    return replace(found, tvm=here.tvm, link=here.link, glibc=None, emulator=())


def _load(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as found:
        return {name: found[name] for name in found}


def make_model(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    """With a batch; the same every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = randomise_statistics(MODELS[name](CLASSES), seed=0)
        return model, torch.randn(2, 3, 64, 64), torch.randint(0, CLASSES, (2,))


@pytest.fixture(scope="session")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Builds:
    base = tmp_path_factory.getbasetemp()
    return Builds((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "artifacts")
