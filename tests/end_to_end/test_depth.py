"""A network may be as deep as it likes: hundreds of layers and joins, through every stage, compiled and trained."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.end_to_end.eager import Eager
from tests.lean import lean_compile
from tests.selection import often
from tests.tolerances import EXACT_GRADIENT, LOSS, assert_near

DEPTHS = [(600, 1000), (200, 450)]  # layers, and how deep Python's stack may be: 1000 is what everybody has
SHAPE = (2, 4, 8, 8)


class Link(nn.Module):
    """A convolution and its activation; every tenth is normalised and joins what came before it."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3 if number % 10 == 0 else 1, padding=1 if number % 10 == 0 else 0)
        self.norm = nn.BatchNorm2d(4) if number % 10 == 0 else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return torch.relu(y) if self.norm is None else torch.relu(x + self.norm(y))


def chain(layers: int) -> nn.Module:
    """Signals keep their size all the way: kernels near the identity."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        body = nn.Sequential(*(Link(number) for number in range(layers)))
        with torch.no_grad():
            for link in body:
                link.conv.weight.mul_(0.2)
                middle = link.conv.weight.shape[-1] // 2
                if link.norm is None:
                    link.conv.weight[:, :, middle, middle] += torch.eye(4)
                else:
                    link.norm.running_mean.normal_(0.0, 0.1)
                    link.norm.running_var.uniform_(1.0, 3.0)
        return nn.Sequential(body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)).eval()


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 2])


@pytest.mark.slow
@pytest.mark.parametrize(("layers", "stack"), often(DEPTHS, [(200, 450)]))
def test_a_long_chain_trains_as_in_pytorch(layers: int, stack: int, tmp_path: Path) -> None:
    """A walk that calls itself for every node needs a stack of more than `layers` calls."""
    model, (x, y) = chain(layers), batch()
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(stack)
    try:
        train_as_in_pytorch(model, x, y, tmp_path)
    finally:
        sys.setrecursionlimit(before)


def train_as_in_pytorch(model: nn.Module, x: Tensor, y: Tensor, folder: Path) -> None:
    step = lean_compile(model, x, layers=3, r=2, cache_prefix=True, tuning=False, out=folder / "deep_step")
    peer = Eager(model, step.manifest["gradients"], patches=dict.fromkeys(step.filtered_layers, 2))
    assert len(step.filtered_layers) == 3
    _, expected = peer.gradients(x, y)
    for name, gradient in step.gradients(x, y).items():
        assert_near(gradient, expected[name], EXACT_GRADIENT, name)
    assert step.train(x, y) == pytest.approx(peer.train(x, y), rel=LOSS)
    assert step.features(x)
    step.close()
