"""Small networks with a batch and its classes, the same every time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def small() -> tuple[nn.Module, Tensor, Tensor]:
    """Four convolutions. Its backward pass, not its forward pass, decides the arena: plans differ in what they take."""
    with _seeded():
        model = nn.Sequential(
            nn.Conv2d(2, 6, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(6, 6, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(6, 8, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(8, 8, 1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 5),
        )
        return model, torch.randn(2, 2, 12, 12), torch.randint(0, 5, (2,))


def conv_head() -> tuple[nn.Module, Tensor, Tensor]:
    """A 1x1 convolution is the classifier."""
    with _seeded():
        layers = [nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 6, 3, padding=1), nn.ReLU()]
        model = nn.Sequential(*layers, nn.Conv2d(6, 5, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        return model, torch.randn(2, 2, 8, 8), torch.randint(0, 5, (2,))


def normed() -> tuple[nn.Module, Tensor, Tensor]:
    """Convolutions `body.0`, `body.3` and `body.6`, a batch norm after each."""
    with _seeded():
        body = nn.Sequential()
        for inputs in (2, 4, 4):
            body.extend([nn.Conv2d(inputs, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()])
        model = nn.Sequential()
        model.add_module("body", body)
        model.add_module("head", nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)))
        return model, torch.randn(2, 2, 8, 8), torch.randint(0, 5, (2,))


def one_dimensional() -> tuple[nn.Module, Tensor, Tensor]:
    with _seeded():
        layers = [nn.Conv1d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv1d(4, 4, 5), nn.ReLU()]
        model = nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(4, 5))
        return model, torch.randn(2, 2, 24), torch.randint(0, 5, (2,))


def transposed() -> tuple[nn.Module, Tensor, Tensor]:
    with _seeded():
        layers = [nn.Conv2d(2, 4, 3), nn.ReLU(), nn.ConvTranspose2d(4, 3, 2, stride=2), nn.ReLU()]
        model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 5))
        return model, torch.randn(2, 2, 8, 8), torch.randint(0, 5, (2,))


class Projected(nn.Module):
    """A residual block whose shortcut is a convolution that no plan trains."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(2, 3, 3, padding=1), nn.Linear(4, 5)
        self.one, self.two = nn.Conv2d(3, 4, 3, padding=1, stride=2), nn.Conv2d(4, 4, 3, padding=1)
        self.shortcut = nn.Conv2d(3, 4, 1, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        return self.head((self.two(self.one(x).relu()) + self.shortcut(x)).relu().mean((2, 3)))


def projected() -> tuple[nn.Module, Tensor, Tensor]:
    with _seeded():
        return Projected(), torch.randn(2, 2, 8, 8), torch.randint(0, 5, (2,))


class Tied(nn.Module):
    """Two convolutions with one kernel, a bias each."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1), nn.Linear(3, 5)
        self.two.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.two(self.one(x).relu()).relu().mean((2, 3)))


def tied() -> tuple[nn.Module, Tensor, Tensor]:
    with _seeded():
        return Tied(), torch.randn(2, 3, 8, 8), torch.randint(0, 5, (2,))


class Again(nn.Module):
    """One convolution before and after another."""

    def __init__(self) -> None:
        super().__init__()
        self.outer, self.inner = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 5, padding=2)
        self.head = nn.Linear(3, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.outer(self.inner(self.outer(x).relu()).relu()).relu().mean((2, 3)))


def again() -> tuple[nn.Module, Tensor, Tensor]:
    with _seeded():
        return Again(), torch.randn(2, 3, 8, 8), torch.randint(0, 5, (2,))


def volumes() -> tuple[nn.Module, Tensor, Tensor]:
    with _seeded():
        layers = [nn.Conv3d(2, 3, 3, padding=1), nn.ReLU(), nn.Conv3d(3, 3, 2), nn.ReLU()]
        model = nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(3, 5))
        return model, torch.randn(2, 2, 4, 6, 6), torch.randint(0, 5, (2,))


@contextmanager
def _seeded() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
