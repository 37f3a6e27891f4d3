"""Exact convolutions on [N, H, W, C] images with packed weights."""

from __future__ import annotations

from collections.abc import Sequence

from gfcompile.export.aten.convolution import geometry, input_gradient, weight_gradient
from gfcompile.export.emitter import Emitter, Value
from gfcompile.export.gf.images import from_nchw, packed, to_nchw, unpacked
from gfcompile.export.table import Table
from gfcompile.ops import gf

TABLE = Table()
Ints = Sequence[int]


@TABLE.writes(gf.conv2d_nhwc.default)
def _conv2d(
    to: Emitter,
    out: Value,
    x: Value,
    w: Value,
    shape: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int,
) -> str:
    settings = geometry(2, stride, padding, dilation, groups)
    return from_nchw(to, to.op("Conv", to_nchw(to, x), unpacked(to, w, shape, groups), **settings))


@TABLE.writes(gf.conv2d_input_grad_nhwc.default)
def _input_grad(
    to: Emitter,
    out: Value,
    gy: Value,
    w: Value,
    shape: Ints,
    size: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int,
) -> str:
    weight = unpacked(to, w, shape, groups)
    return from_nchw(to, input_gradient(to, to_nchw(to, gy), weight, shape, size, stride, padding, dilation, groups))


@TABLE.writes(gf.conv2d_weight_grad_nhwc.default)
def _weight_grad(
    to: Emitter,
    out: Value,
    gy: Value,
    x: Value,
    shape: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int,
) -> str:
    gw = weight_gradient(to, to_nchw(to, gy), to_nchw(to, x), shape, stride, padding, dilation, groups)
    return packed(to, gw, shape, groups)
