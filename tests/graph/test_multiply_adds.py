"""Multiply-adds of each kind of node, against the sums written out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from gfcompile.geometry.layouts import WeightLayout
from gfcompile.graph.multiply_adds import multiply_adds
from gfcompile.ops import gf

aten = torch.ops.aten


def count(function: Callable[..., Any], *shapes: tuple[int, ...]) -> int:
    traced = make_fx(function, tracing_mode="fake")(*(torch.zeros(shape) for shape in shapes))
    return sum(multiply_adds(node) for node in traced.graph.nodes)


def packed(shape: list[int], groups: int = 1) -> tuple[int, ...]:
    return tuple(WeightLayout.for_conv(shape, groups).physical_shape)


PLAIN = ([1, 1], [1, 1], [1, 1])
SHAPE = [16, 8, 3, 3]
CASES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]], int]] = {
    "mm": (torch.mm, [(2, 3), (3, 5)], 2 * 3 * 5),
    "addmm": (torch.addmm, [(5,), (2, 3), (3, 5)], 2 * 3 * 5),
    "bmm": (torch.bmm, [(4, 2, 3), (4, 3, 5)], 4 * 2 * 3 * 5),
    "conv2d_nhwc": (
        lambda x, w: gf.conv2d_nhwc(x, w, SHAPE, [2, 2], [1, 1], [1, 1], 1),
        [(2, 6, 6, 8), packed(SHAPE)],
        2 * 3 * 3 * 16 * 8 * 9,
    ),
    "depthwise": (
        lambda x, w: gf.conv2d_nhwc(x, w, [16, 1, 3, 3], *PLAIN, 16),
        [(2, 6, 6, 16), packed([16, 1, 3, 3], 16)],
        2 * 6 * 6 * 16 * 9,
    ),
    "winograd": (
        lambda x, w: gf.winograd_conv2d_nhwc(x, w, [1, 1], 2),
        [(2, 6, 6, 8), packed(SHAPE)],
        2 * 6 * 6 * 16 * 8 * 9,
    ),
    "input_grad": (
        lambda g, w: gf.conv2d_input_grad_nhwc(g, w, SHAPE, [6, 6], [2, 2], [1, 1], [1, 1], 1),
        [(2, 3, 3, 16), packed(SHAPE)],
        2 * 3 * 3 * 16 * 8 * 9,
    ),
    "weight_grad": (
        lambda g, x: gf.conv2d_weight_grad_nhwc(g, x, SHAPE, [2, 2], [1, 1], [1, 1], 1),
        [(2, 3, 3, 16), (2, 6, 6, 8)],
        2 * 3 * 3 * 16 * 8 * 9,
    ),
    "channel_mix, taps summed": (
        lambda g, w: gf.channel_mix_nhwc(g, w, SHAPE, 1, [0, 0]),
        [(2, 3, 3, 16), packed(SHAPE)],
        2 * 3 * 3 * 16 * 8,
    ),
    "channel_mix, a row of taps": (
        lambda g, w: gf.channel_mix_nhwc(g, w, SHAPE, 1, [0, 1]),
        [(2, 3, 3, 16), packed(SHAPE)],
        2 * 3 * 3 * 16 * 8 * 3,
    ),
    "channel_mix_weight": (
        lambda g, x: gf.channel_mix_weight_nhwc(g, x, [16, 8, 1, 1], 1),
        [(2, 3, 3, 16), (2, 3, 3, 8)],
        2 * 3 * 3 * 16 * 8,
    ),
    "convolution": (
        lambda x, w: aten.convolution(x, w, None, [1], [0], [1], False, [0], 1),
        [(2, 3, 10), (5, 3, 3)],
        2 * 5 * 8 * 9,
    ),
    "transposed": (
        lambda x, w: aten.convolution(x, w, None, [2], [0], [1], True, [0], 1),
        [(2, 3, 10), (3, 5, 3)],
        2 * 3 * 10 * 5 * 3,
    ),
    "element-wise": (torch.mul, [(2, 3), (2, 3)], 0),
}


@pytest.mark.parametrize("name", CASES)
def test_counts(name: str) -> None:
    function, shapes, expected = CASES[name]
    assert count(function, *shapes) == expected
