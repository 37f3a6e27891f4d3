"""fold_batchnorm: a frozen convolution takes the frozen scale behind it; any other is left as it is."""

import pytest
from torch import nn

from gfcompile.passes.canonicalize import Canonicalize
from gfcompile.passes.fold_batchnorm import FoldBatchnorm
from gfcompile.settings.schema import Request
from tests.passes.handwritten import assert_leaves, assert_rewrites
from tests.passes.tiny import applied, assert_same_numbers, numbers, site_names, traced


def followed_by_norm(stem: nn.Module) -> nn.Module:
    tail = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 2)]
    return nn.Sequential(stem, nn.BatchNorm2d(4), nn.Conv2d(4, 2, 3), *tail)


@pytest.mark.slow
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


BEFORE = """
    def step(
        w,  # parameter w float32[4, 3, 3, 3]
        scale,  # constant scale float32[1, 4, 1, 1]
        shift,  # constant shift float32[1, 4, 1, 1]
        bias,  # constant bias float32[4]
        x,  # input x float32[2, 3, 5, 5]
    ):
        convolution = aten.convolution(x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
        mul = aten.mul.Tensor(convolution, scale)
        add = aten.add.Tensor(mul, shift)
        return (
            add,  # output output
        )
    """


def test_absorbs_the_scale():
    after = """
        def step(
            w,  # parameter w float32[4, 3, 3, 3]
            scale,  # constant scale float32[1, 4, 1, 1]
            shift,  # constant shift float32[1, 4, 1, 1]
            bias,  # constant bias float32[4]
            x,  # input x float32[2, 3, 5, 5]
        ):
            reshape_default = aten.reshape(scale, [-1, 1, 1, 1])
            mul_tensor = aten.mul.Tensor(w, reshape_default)
            convolution_default = aten.convolution(x, mul_tensor, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
            add = aten.add.Tensor(convolution_default, shift)
            return (
                add,  # output output
            )
        """
    assert_rewrites(FoldBatchnorm(), BEFORE, after, ["mul"], relative=1e-12)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("add,  # output output", "add,  # gradient w"),
        ("constant scale", "parameter scale"),
        ("constant scale", "input scale"),
        ("x, w, None, [1, 1]", "x, w, bias, [1, 1]"),
        ("[1, 1], False, [0, 0], 1)", "[1, 1], True, [0, 0], 1)"),
        ("aten.add.Tensor(mul, shift)", "aten.add.Tensor(mul, convolution)"),
        ("scale float32[1, 4, 1, 1]", "scale float32[1, 1, 5, 5]"),
    ],
    ids=["trained", "trained scale", "no constant", "biased", "transposed", "shared", "not one a channel"],
)
def test_leaves(old, new):
    """One thing changed in what is folded otherwise."""
    changed = BEFORE.replace(old, new)
    assert changed != BEFORE
    if new.endswith("True, [0, 0], 1)"):
        changed = changed.replace("w float32[4, 3, 3, 3]", "w float32[3, 4, 3, 3]")
    if new == "parameter scale":
        changed = changed.replace("output output", "gradient scale")
    assert_leaves(FoldBatchnorm(), changed)


def test_batch_statistics_are_no_frozen_scale():
    step = applied(
        traced(followed_by_norm(nn.Conv2d(2, 4, 3, bias=False)), (2, 2, 8, 8), Request(layers=1, batchnorm="train")),
        Canonicalize(),
        FoldBatchnorm(),
    )
    assert site_names(step) == []
