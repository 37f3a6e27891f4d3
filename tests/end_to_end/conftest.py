"""Artifacts that several files share: a compile costs seconds, so each is made once."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.models import randomise_statistics
from tests.models.resnet import ResNet
from tests.store import Store

CLASSES = 10
SGD = {"momentum": 0.9, "weight_decay": 1e-4}


def small_resnet() -> nn.Module:
    """The same weights every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return randomise_statistics(ResNet((1, 1, 1, 2), CLASSES, width=8), seed=0)


def random_batch(shape: tuple[int, ...], seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator)
    return x, torch.randint(0, CLASSES, shape[:1], generator=generator)


@dataclass(frozen=True)
class Artifact:
    """A compiled folder and the model it was made from."""

    folder: Path
    model: nn.Module
    batchnorm: str

    def copy_to(self, parent: Path) -> Path:
        return Path(shutil.copytree(self.folder, parent / self.folder.name))


def _small_artifact(store: Store, batchnorm: str, full: bool) -> Artifact:
    """A short ResNet-18 at width 8, batch 4 of 64x64, the last 3 convolutions filtered at r=2."""
    model = small_resnet()
    x, _ = random_batch((4, 3, 64, 64), seed=0)
    options: dict[str, Any] = {"layers": 3, "r": 2, "lr": 0.05, "batchnorm": batchnorm, **SGD}
    return Artifact(store.compiled(model, x, "small_step", full=full, **options), model, batchnorm)


@pytest.fixture(scope="session")
def eval_artifact(store: Store) -> Artifact:
    return _small_artifact(store, "eval", full=True)


@pytest.fixture(scope="session")
def train_artifact(store: Store) -> Artifact:
    return _small_artifact(store, "train", full=False)


@pytest.fixture(params=["eval", "train"])
def artifact(request: pytest.FixtureRequest) -> Artifact:
    """Either batch norm policy."""
    found: Artifact = request.getfixturevalue(f"{request.param}_artifact")
    return found
