"""filter: the marked operator becomes patch operators and gives the same numbers."""

import pytest
import torch
from torch import nn

from gfcompile.passes.canonicalize import Canonicalize
from gfcompile.passes.filter import Filter
from gfcompile.passes.select import Select
from gfcompile.settings.schema import Request
from tests.passes.handwritten import assert_leaves, assert_rewrites
from tests.passes.tiny import applied, assert_same_numbers, numbers, site_names, traced

CONVOLUTIONS = {
    "same": nn.Conv2d(4, 6, 3, padding=1),
    "strided": nn.Conv2d(4, 6, 3, stride=2, padding=1),
    "rectangular": nn.Conv2d(4, 6, (5, 2), stride=(1, 3), padding=(0, 1)),
    "depthwise": nn.Conv2d(4, 4, 3, stride=2, padding=1, groups=4),
    "grouped": nn.Conv2d(4, 6, 3, padding=1, groups=2),
    "dilated": nn.Conv2d(4, 6, 3, padding=3, dilation=3),
}


def marked_step(conv: nn.Module, r: int, compat: str | None = None):
    model = nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU(), conv, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.LazyLinear(2))
    model(torch.zeros(2, 4, 7, 9))
    request = Request(layers=2, r={"*": r}, compat=compat)
    return applied(traced(model, (2, 4, 7, 9), request), Canonicalize(), Select())


@pytest.mark.slow
@pytest.mark.parametrize(("name", "r"), [*((name, 2) for name in CONVOLUTIONS), ("strided", 1), ("rectangular", 4)])
def test_equals_the_marked_operator(name, r):
    step = marked_step(CONVOLUTIONS[name], r)
    before = numbers(step)
    after = numbers(Filter().run(step))
    assert len(site_names(step)) == 2
    assert_same_numbers(before, after)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["same", "strided", "depthwise", "dilated"])
def test_equals_the_marked_operator_in_reference_mode(name):
    step = marked_step(CONVOLUTIONS[name], 2, "reference")
    before = numbers(step)
    assert_same_numbers(before, numbers(Filter().run(step)))


def test_expands_the_marked_backward():
    before = """
        def step(
            w,  # parameter conv.weight float32[4, 3, 3, 3]
            x,  # input x float32[2, 3, 8, 8]
            gy,  # target gy float32[2, 4, 8, 8]
        ):
            loss = aten.sum(gy)
            backward = gf.filtered_convolution_backward(gy, x, w, [1, 1], [1, 1], [1, 1], 1, 2, False)
            gx = getitem(backward, 0)
            gw = getitem(backward, 1)
            gb = getitem(backward, 2)
            return (
                loss,  # loss loss
                gx,  # gradient x
                gw,  # gradient conv.weight
                gb,  # gradient conv.bias
            )
        """
    after = """
        def step(
            w,  # parameter conv.weight float32[4, 3, 3, 3]
            x,  # input x float32[2, 3, 8, 8]
            gy,  # target gy float32[2, 4, 8, 8]
        ):
            loss = aten.sum(gy)
            patch_mean_default = gf.patch_mean(gy, [4, 2, 0, 0, 8], [4, 2, 0, 0, 8])
            channel_mix_default = gf.channel_mix(patch_mean_default, w, 1, [0, 0])
            patch_broadcast_default = gf.patch_broadcast(channel_mix_default, [4, 2, 0, 0, 8], [4, 2, 0, 0, 8], [8, 8])
            patch_sum_default = gf.patch_sum(x, [4, 2, 0, 0, 8], [4, 2, 0, 0, 8])
            channel_mix_weight_default = gf.channel_mix_weight(patch_mean_default, patch_sum_default, 1, [1, 1])
            expand_default = aten.expand(channel_mix_weight_default, [4, 3, 3, 3])
            sum_dim_int_list = aten.sum.dim_IntList(gy, [0, 2, 3])
            return (
                loss,  # loss loss
                patch_broadcast_default,  # gradient x
                expand_default,  # gradient conv.weight
                sum_dim_int_list,  # gradient conv.bias
            )
        """
    assert_rewrites(Filter(), before, after, ["w"], relative=1e-12)


def test_computes_only_what_is_used():
    """The first trained layer needs no gx, so neither channel mix nor broadcast is written for it."""
    before = """
        def step(
            w,  # parameter conv.weight float32[4, 3, 3, 3]
            x,  # input x float32[2, 3, 8, 8]
            gy,  # target gy float32[2, 4, 4, 4]
        ):
            loss = aten.sum(gy)
            backward = gf.filtered_convolution_backward(gy, x, w, [2, 2], [1, 1], [1, 1], 1, 2, False)
            gw = getitem(backward, 1)
            return (
                loss,  # loss loss
                gw,  # gradient conv.weight
            )
        """
    after = """
        def step(
            w,  # parameter conv.weight float32[4, 3, 3, 3]
            x,  # input x float32[2, 3, 8, 8]
            gy,  # target gy float32[2, 4, 4, 4]
        ):
            loss = aten.sum(gy)
            patch_mean_default = gf.patch_mean(gy, [2, 2, 0, 0, 4], [2, 2, 0, 0, 4])
            patch_sum_default = gf.patch_sum(x, [2, 4, 0, 0, 8], [2, 4, 0, 0, 8])
            mul_scalar = aten.mul.Scalar(patch_sum_default, 0.25)
            channel_mix_weight_default = gf.channel_mix_weight(patch_mean_default, mul_scalar, 1, [1, 1])
            expand_default = aten.expand(channel_mix_weight_default, [4, 3, 3, 3])
            return (
                loss,  # loss loss
                expand_default,  # gradient conv.weight
            )
        """
    assert_rewrites(Filter(), before, after, ["w"], relative=1e-12)


def test_finds_nothing_in_an_exact_step():
    assert_leaves(
        Filter(),
        """
        def step(
            w,  # parameter conv.weight float32[4, 3, 1, 1]
            x,  # input x float32[2, 3, 8, 8]
            gy,  # target gy float32[2, 4, 8, 8]
        ):
            backward = aten.convolution_backward(gy, x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [False, True, False])
            gw = getitem(backward, 1)
            return (
                gw,  # gradient conv.weight
            )
        """,  # noqa: E501
    )
