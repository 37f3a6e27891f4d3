"""fold_batchnorm: a frozen convolution takes the frozen scale behind it; any other is left as it is."""

import pytest
import torch
from torch import Tensor, nn

from gfcompile.passes.canonicalize import Canonicalize
from gfcompile.passes.fold_batchnorm import FoldBatchnorm
from gfcompile.settings.schema import Request
from tests.passes.tiny import (
    applied,
    assert_golden,
    assert_same_numbers,
    assert_second_run_changes_nothing,
    network_step,
    numbers,
    site_names,
    text,
    traced,
)


class Shared(nn.Module):
    """The convolution's output is read twice: scaled and as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 2, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(2)
        self.conv = nn.Conv2d(2, 2, 3, padding=1)
        self.head = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        return self.head(self.conv(self.norm(y) + y).mean((2, 3)))


def followed_by_norm(stem: nn.Module) -> nn.Module:
    tail = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 2)]
    return nn.Sequential(stem, nn.BatchNorm2d(4), nn.Conv2d(4, 2, 3), *tail)


def test_absorbs_the_scale():
    step = network_step(Canonicalize())
    assert_golden("fold_batchnorm.before", step)
    assert_golden("fold_batchnorm.after", FoldBatchnorm().run(step))
    assert len(site_names(step)) == 1


@pytest.mark.parametrize(
    "stem",
    [
        nn.Conv2d(2, 4, 3, bias=False),
        nn.Conv2d(2, 4, 3, stride=2, groups=2, bias=False),
        nn.Conv2d(2, 4, (1, 3), dilation=2, padding=1, bias=False),
    ],
    ids=["dense", "grouped", "dilated"],
)
def test_numbers_stay(stem):
    step = applied(traced(followed_by_norm(stem), (2, 2, 11, 9), Request(layers=1)), Canonicalize())
    before = numbers(step)
    after = numbers(FoldBatchnorm().run(step))
    assert len(site_names(step)) == 1
    assert_same_numbers(before, after)


@pytest.mark.parametrize(
    ("model", "shape", "request_"),
    [
        (followed_by_norm(nn.Conv2d(2, 4, 3, bias=False)), (1, 2, 8, 8), {"layers": 2}),
        (followed_by_norm(nn.Conv2d(2, 4, 3, bias=False)), (1, 2, 8, 8), {"layers": 1, "train": ("1",)}),
        (followed_by_norm(nn.Conv2d(2, 4, 3, bias=False)), (2, 2, 8, 8), {"layers": 1, "batchnorm": "train"}),
        (followed_by_norm(nn.Conv2d(2, 4, 3)), (1, 2, 8, 8), {"layers": 1}),
        (followed_by_norm(nn.ConvTranspose2d(2, 4, 3, bias=False)), (1, 2, 8, 8), {"layers": 1}),
        (Shared(), (1, 1, 6, 6), {"layers": 1}),
    ],
    ids=["trained", "trained scale", "batch statistics", "biased", "transposed", "shared"],
)
def test_leaves(model, shape, request_):
    step = applied(traced(model, shape, Request(**request_)), Canonicalize())
    before = text(step)
    assert text(FoldBatchnorm().run(step)) == before
    assert site_names(step) == []


def test_a_frozen_factor_that_is_not_a_channel_scale_stays():
    class Gain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(1, 2, 3, padding=1, bias=False)
            self.register_buffer("gain", torch.rand(1, 1, 6, 6))
            self.head = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head((self.stem(x) * self.gain).mean((2, 3)))

    step = applied(traced(Gain(), (1, 1, 6, 6), Request(train=("head",))), Canonicalize(), FoldBatchnorm())
    assert site_names(step) == []


def test_second_run():
    assert_second_run_changes_nothing(FoldBatchnorm(), network_step(Canonicalize(), FoldBatchnorm()))
