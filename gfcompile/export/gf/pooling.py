"""Pooling on [N, H, W, C] images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from gfcompile.export.aten.pooling import (
    Pool,
    adaptive_avg_pool,
    adaptive_avg_pool_backward,
    avg_pool,
    avg_pool_backward,
    max_pool,
    scatter_planes,
)
from gfcompile.export.emitter import Emitter, Value
from gfcompile.export.gf.images import from_nchw, to_nchw
from gfcompile.export.table import Result, Table
from gfcompile.ops import gf

TABLE = Table()
Ints = Sequence[int]


@TABLE.writes(gf.max_pool2d_nhwc.default)
def _max_pool(
    to: Emitter,
    out: tuple[Value, Value],
    x: Value,
    kernel: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    ceil_mode: bool,
) -> Result:
    """Positions in the plane become taps of the window."""
    pool = Pool.of(x.shape[1:3], out[0].shape[1:3], kernel, stride, padding, dilation)
    values, index = max_pool(to, to_nchw(to, x), pool, with_index=True)
    width = to.scalar(pool.size[1], torch.int64)
    row, col = (
        to.op("Div", to.op("Sub", place, start), to.scalar(pace, torch.int64))
        for place, start, pace in zip(
            (to.op("Div", index, width), to.op("Mod", index, width)), _window_starts(pool), pool.dilation, strict=True
        )
    )
    tap = to.op("Add", to.op("Mul", row, to.scalar(pool.kernel[1], torch.int64)), col)
    byte = to.cast(Value(tap, (), torch.int64), out[1].dtype)
    return from_nchw(to, values), from_nchw(to, byte)


def _window_starts(pool: Pool) -> tuple[np.ndarray, np.ndarray]:
    rows, cols = (
        np.arange(count, dtype=np.int64) * pace - pad
        for count, pace, pad in zip(pool.pooled, pool.stride, pool.padding, strict=True)
    )
    return rows[:, None], cols[None, :]


@TABLE.writes(gf.pool_positions_nhwc.default)
def _pool_positions(
    to: Emitter, out: Value, taps: Value, width: int, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints
) -> str:
    pool = Pool.of([0, width], taps.shape[1:3], kernel, stride, padding, dilation)
    return from_nchw(to, _positions(to, taps, pool))


def _positions(to: Emitter, taps: Value, pool: Pool) -> str:
    """Where in its plane each tap lies, [N, C, OH, OW]; of the pooled image only the width counts."""
    tap, width = to.cast(to_nchw(to, taps), torch.int64), to.scalar(pool.kernel[1], torch.int64)
    row, col = (
        to.op("Add", to.op("Mul", place, to.scalar(pace, torch.int64)), start)
        for place, start, pace in zip(
            (to.op("Div", tap, width), to.op("Mod", tap, width)), _window_starts(pool), pool.dilation, strict=True
        )
    )
    return to.op("Add", to.op("Mul", row, to.scalar(pool.size[1], torch.int64)), col)


@TABLE.writes(gf.max_pool2d_values_nhwc.default)
def _max_pool_values(
    to: Emitter,
    out: Value,
    x: Value,
    kernel: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    ceil_mode: bool,
) -> str:
    pool = Pool.of(x.shape[1:3], out.shape[1:3], kernel, stride, padding, dilation)
    return from_nchw(to, max_pool(to, to_nchw(to, x), pool, with_index=False)[0])


@TABLE.writes(gf.max_pool2d_backward_nhwc.default)
def _max_pool_backward(
    to: Emitter,
    out: Value,
    gy: Value,
    taps: Value,
    size: Ints,
    kernel: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
) -> str:
    pool = Pool.of(size, gy.shape[1:3], kernel, stride, padding, dilation)
    where = _positions(to, taps, pool)
    gradient = to_nchw(to, gy)
    spread = scatter_planes(to, gradient, where, gradient.shape[:2], size, gy.dtype)
    return from_nchw(to, to.op("Reshape", spread, [*gradient.shape[:2], *size]))


@TABLE.writes(gf.avg_pool2d_nhwc.default)
def _avg_pool(
    to: Emitter,
    out: Value,
    x: Value,
    kernel: Ints,
    stride: Ints,
    padding: Ints,
    ceil_mode: bool,
    count_pad: bool,
    divisor: int,
) -> str:
    pool = Pool.of(x.shape[1:3], out.shape[1:3], kernel, stride, padding)
    return from_nchw(to, avg_pool(to, to_nchw(to, x), pool, ceil_mode, count_pad, divisor or None))


@TABLE.writes(gf.avg_pool2d_backward_nhwc.default)
def _avg_pool_backward(
    to: Emitter,
    out: Value,
    gy: Value,
    size: Ints,
    kernel: Ints,
    stride: Ints,
    padding: Ints,
    ceil_mode: bool,
    count_pad: bool,
    divisor: int,
) -> str:
    gradient = to_nchw(to, gy)
    pool = Pool.of(size, gy.shape[1:3], kernel, stride, padding)
    planes = avg_pool_backward(to, gradient, pool, count_pad, divisor or None)
    return from_nchw(to, to.op("Reshape", planes, [*gradient.shape[:2], *size]))


@TABLE.writes(gf.adaptive_avg_pool2d_nhwc.default)
def _adaptive_avg_pool(to: Emitter, out: Value, x: Value, size: Ints) -> str:
    return from_nchw(to, adaptive_avg_pool(to, to_nchw(to, x), x.shape[1:3], size))


@TABLE.writes(gf.adaptive_avg_pool2d_backward_nhwc.default)
def _adaptive_avg_pool_backward(to: Emitter, out: Value, gy: Value, size: Ints) -> str:
    return from_nchw(to, adaptive_avg_pool_backward(to, to_nchw(to, gy), size, gy.shape[1:3]))
