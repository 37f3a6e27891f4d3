"""Artifacts of networks for several targets, and what the one for this machine computes: each made once per run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gfcompile
from gfcompile.codegen.link import find_missing
from gfcompile.compiler import write_step
from gfcompile.frontend.losses import resolve_loss
from gfcompile.job import Job, Lowered
from gfcompile.settings.schema import Request
from gfcompile.stages import lower_job
from gfcompile.targets import Target, find_target
from tests.lean import place_lean
from tests.missing import skip_for_want
from tests.models import randomise_statistics
from tests.models.mobilenet import mobilenet_v2, short_mobilenet_v2
from tests.models.resnet import resnet10, resnet18
from tests.runtime.harness import read_state, write_arrays
from tests.selection import often
from tests.store import Store

LARGE = {"resnet18": resnet18, "mobilenet_v2": mobilenet_v2}
MODELS = {
    **LARGE,
    "resnet10": lambda classes: resnet10(classes, width=32),
    "short_mobilenet_v2": short_mobilenet_v2,
}
BOARDS = ("rpi3", "rpi4")
JETSONS = ("jetson-nano", "jetson-tx2", "jetson-xavier", "jetson-orin")
# `make test` builds a ResNet for in-order cores and a MobileNet for the largest GPU; the others are for `make coverage`
SMALL_ON_BOARDS = [("resnet10", "rpi3"), ("short_mobilenet_v2", "rpi4")]
SMALL_ON_JETSONS = [("short_mobilenet_v2", "jetson-orin"), ("resnet10", "jetson-nano")]
ON_BOARDS = often([*SMALL_ON_BOARDS, *((model, board) for model in LARGE for board in BOARDS)], SMALL_ON_BOARDS[:1])
ON_JETSONS = often([*SMALL_ON_JETSONS, *((model, board) for model in LARGE for board in JETSONS)], SMALL_ON_JETSONS[:1])
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
    """Makes artifacts when a test asks for them, once for all processes of a test run."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def reference(self, model: str) -> Reference:
        native = self.artifact(model, "native")
        with self.store.alone(f"{model}_reference"):
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
        name = f"{model}_{target.replace('-', '_')}"

        def build(folder: Path) -> None:
            folder.mkdir()
            write_step(place_lean(_lowered(model, find_target(target).kind), _machine(target)), folder / name)

        return self.store.get(name, build) / name

    def _arrays(self, model: str) -> Path:
        return self.store.folder / f"{model}_arrays"

    def _results(self, model: str, what: str) -> Path:
        return self.store.folder / f"{model}_{what}.npz"

    def _train_here(self, model: str, native: Path) -> None:
        _, x, y = make_model(model)
        with gfcompile.load(native) as step:
            write_arrays(step, x.numpy(), y.numpy(), self._arrays(model))
            losses = [step.train(x, y) for _ in range(STEPS)]
            entries = zip(step.manifest["state"], read_state(step), strict=True)
            state = {entry["name"]: kept.view(entry["dtype"]) for entry, kept in entries}
            np.savez(self._results(model, "weights"), **{k: v.numpy() for k, v in step.state_dict().items()})
            np.savez(self._results(model, "state"), losses=losses, **state)


@cache
def _lowered(model: str, kind: str) -> Lowered:
    """Lowering takes longest, and is the same for all targets of a kind."""
    module, x, _ = make_model(model)
    job = Job(module, (x,), resolve_loss("cross_entropy"), Request(layers=4, r={"*": 2}), lr=RATE)
    return lower_job(job, kind)


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


def tiny_net() -> nn.Module:
    """Two convolutions and what lies between them; the same weights every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, stride=2), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
        )  # fmt: skip


@pytest.fixture(scope="session")
def builds(store: Store) -> Builds:
    return Builds(store)
