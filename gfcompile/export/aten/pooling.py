"""Pooling and its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gfcompile.export.aten.convolution import per_axis
from gfcompile.export.emitter import Emitter, Operand, Value
from gfcompile.export.table import Result, Table

aten = torch.ops.aten
TABLE = Table()
Ints = Sequence[int]


@dataclass(frozen=True)
class Pool:
    """Windows over the two axes of an image: everything that the sizes of input and output decide."""

    size: list[int]
    pooled: list[int]
    kernel: list[int]
    stride: list[int]
    padding: list[int]
    dilation: list[int]

    @classmethod
    def of(cls, size: Ints, pooled: Ints, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints = (1,)) -> Pool:
        """With the operator's own arguments: an empty stride is the kernel's, one number is for both axes."""
        edges = per_axis(kernel, 2)
        rest = [per_axis(values, 2) for values in (stride or edges, padding, dilation)]
        return cls(list(size), list(pooled), edges, *rest)

    @property
    def after(self) -> list[int]:
        """Padding after the last row that the windows need; with it there is no ceil mode, on which tools differ."""
        reach = [
            (n - 1) * s + d * (k - 1) + 1
            for n, s, d, k in zip(self.pooled, self.stride, self.dilation, self.kernel, strict=True)
        ]
        return [max(0, r - p - n) for r, p, n in zip(reach, self.padding, self.size, strict=True)]

    def divisors(self, count_pad: bool) -> list[np.ndarray]:
        """By how many elements an average divides, along each axis."""
        found = []
        for n, count, k, s, p in zip(self.size, self.pooled, self.kernel, self.stride, self.padding, strict=True):
            start = np.arange(count) * s - p
            stop = np.minimum(start + k, n + p)
            inside = stop - start if count_pad else np.minimum(stop, n) - np.maximum(start, 0)
            found.append(inside.astype(np.float32))
        return found


@TABLE.writes(aten.max_pool2d_with_indices.default)
def _max_pool(
    to: Emitter,
    out: tuple[Value | None, ...],
    x: Value,
    kernel: Ints,
    stride: Ints = (),
    padding: Ints = (0,),
    dilation: Ints = (1,),
    ceil_mode: bool = False,
) -> Result:
    read = next(value for value in out if value is not None)
    pool = Pool.of(x.shape[-2:], read.shape[-2:], kernel, stride, padding, dilation)
    image, shape = as_planes(to, x, read)
    results = max_pool(to, image, pool, with_index=out[1] is not None)
    if shape is None:
        return results
    return tuple(result and to.op("Reshape", result, shape) for result in results)


def as_planes(to: Emitter, x: Value, out: Value) -> tuple[Operand, tuple[int, ...] | None]:
    """PyTorch pools [C, H, W] as well: then the image with a batch axis, and the shape to go back to."""
    if x.rank == 4:
        return x, None
    return to.op("Reshape", x, [1, *x.shape]), out.shape


def max_pool(to: Emitter, x: Operand, pool: Pool, with_index: bool) -> tuple[str, str | None]:
    """Maxima, and where each lies in its own plane: ONNX counts positions through the whole tensor."""
    settings: dict[str, Any] = {"kernel_shape": pool.kernel, "strides": pool.stride, "dilations": pool.dilation}
    results = to.ops("MaxPool", 1 + with_index, x, pads=[*pool.padding, *pool.after], **settings)
    if not with_index:
        return results[0], None
    plane = to.scalar(pool.size[0] * pool.size[1], torch.int64)
    return results[0], to.op("Mod", results[1], plane)


@TABLE.writes(aten.max_pool2d_with_indices_backward.default)
def _max_pool_backward(
    to: Emitter,
    out: Value,
    gy: Value,
    x: Value,
    kernel: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    ceil_mode: bool,
    index: Value,
) -> str:
    spread = scatter_planes(to, gy, index, gy.shape[:-2], x.shape[-2:], gy.dtype)
    return to.op("Reshape", spread, out.shape)


def scatter_planes(to: Emitter, gy: Operand, index: Operand, planes: Ints, size: Ints, dtype: torch.dtype) -> str:
    """Each gradient added at its position in the plane: [planes..., H*W]."""
    zeros = to.filled([*planes, size[0] * size[1]], 0, dtype)
    flat, where = (to.op("Reshape", operand, [*planes, -1]) for operand in (gy, index))
    return to.op("ScatterElements", zeros, where, flat, axis=len(planes), reduction="add")


@TABLE.writes(aten.avg_pool2d.default)
def _avg_pool(
    to: Emitter,
    out: Value,
    x: Value,
    kernel: Ints,
    stride: Ints = (),
    padding: Ints = (0,),
    ceil_mode: bool = False,
    count_pad: bool = True,
    divisor: int | None = None,
) -> str:
    image, shape = as_planes(to, x, out)
    pool = Pool.of(x.shape[-2:], out.shape[-2:], kernel, stride, padding)
    y = avg_pool(to, image, pool, ceil_mode, count_pad, divisor)
    return to.op("Reshape", y, shape) if shape else y


def avg_pool(to: Emitter, x: Operand, pool: Pool, ceil_mode: bool, count_pad: bool, divisor: int | None) -> str:
    """Where tools agree on AveragePool, that; else its sums over a padded image, divided as PyTorch does."""
    settings = {"kernel_shape": pool.kernel, "strides": pool.stride}
    if not ceil_mode and divisor is None:
        return to.op("AveragePool", x, pads=pool.padding * 2, count_include_pad=int(count_pad), **settings)
    padded = to.op("Pad", x, [*pool.padding, *pool.after], None, [2, 3])
    mean = to.op("AveragePool", padded, **settings)
    return to.op("Mul", mean, _scale(pool, count_pad, divisor) * np.float32(pool.kernel[0] * pool.kernel[1]))


def _scale(pool: Pool, count_pad: bool, divisor: int | None) -> np.ndarray:
    """1 / divisor of every window, [OH, OW] or [1, 1]."""
    if divisor is not None:
        return np.full((1, 1), 1 / divisor, dtype=np.float32)
    rows, cols = pool.divisors(count_pad)
    if (rows == rows[0]).all() and (cols == cols[0]).all():
        rows, cols = rows[:1], cols[:1]
    return (1 / np.outer(rows, cols)).astype(np.float32)


@TABLE.writes(aten.avg_pool2d_backward.default)
def _avg_pool_backward(
    to: Emitter,
    out: Value,
    gy: Value,
    x: Value,
    kernel: Ints,
    stride: Ints,
    padding: Ints,
    ceil_mode: bool,
    count_pad: bool,
    divisor: int | None,
) -> str:
    pool = Pool.of(x.shape[-2:], gy.shape[-2:], kernel, stride, padding)
    return to.op("Reshape", avg_pool_backward(to, gy, pool, count_pad, divisor), out.shape)


def avg_pool_backward(to: Emitter, gy: Operand, pool: Pool, count_pad: bool, divisor: int | None) -> str:
    """Spread over its window each: a transposed convolution by ones, every plane a sample. [planes, 1, H, W]"""
    scaled = to.op("Mul", gy, _scale(pool, count_pad, divisor))
    planes = to.op("Reshape", scaled, [-1, 1, *pool.pooled])
    ones = to.filled([1, 1, *pool.kernel], 1, torch.float32)
    spread = to.op("ConvTranspose", planes, ones, strides=pool.stride)
    reach = [(n - 1) * s + k for n, s, k in zip(pool.pooled, pool.stride, pool.kernel, strict=True)]
    missing = [max(0, p + n - r) for p, n, r in zip(pool.padding, pool.size, reach, strict=True)]
    if any(missing):
        spread = to.op("Pad", spread, [0, 0, *missing], None, [2, 3])
    stop = [p + n for p, n in zip(pool.padding, pool.size, strict=True)]
    return to.op("Slice", spread, pool.padding, stop, [2, 3])


@TABLE.writes(aten._adaptive_avg_pool2d.default)
def _adaptive_avg_pool(to: Emitter, out: Value, x: Value, size: Ints) -> str:
    return adaptive_avg_pool(to, x, x.shape[-2:], out.shape[-2:])


def adaptive_avg_pool(to: Emitter, x: Operand, size: Ints, pooled: Ints) -> str:
    """Of [..., H, W]."""
    if list(pooled) == [1, 1]:
        return to.op("ReduceMean", x, [-2, -1])
    rows, cols = (_adaptive_matrix(n, count) for n, count in zip(size, pooled, strict=True))
    return to.op("MatMul", to.op("MatMul", rows, x), cols.T.copy())


@TABLE.writes(aten._adaptive_avg_pool2d_backward.default)
def _adaptive_avg_pool_backward(to: Emitter, out: Value, gy: Value, x: Value) -> str:
    return adaptive_avg_pool_backward(to, gy, x.shape[-2:], gy.shape[-2:])


def adaptive_avg_pool_backward(to: Emitter, gy: Operand, size: Ints, pooled: Ints) -> str:
    """Each pooled gradient shared out over its window: a matrix per axis."""
    rows, cols = (_adaptive_matrix(n, count) for n, count in zip(size, pooled, strict=True))
    return to.op("MatMul", to.op("MatMul", rows.T.copy(), gy), cols)


def _adaptive_matrix(size: int, pooled: int) -> np.ndarray:
    """[pooled, size]: window i is [floor(i*size/pooled), ceil((i+1)*size/pooled)), averaged."""
    table = np.zeros((pooled, size), dtype=np.float32)
    for window in range(pooled):
        start, stop = window * size // pooled, -(-(window + 1) * size // pooled)
        table[window, start:stop] = 1 / (stop - start)
    return table
