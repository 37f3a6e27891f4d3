"""Convolutions and pools that are not of batches of images, by those that are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

aten = torch.ops.aten
Function = Callable[..., Any]


def _conv1d(
    x: Tensor, w: Tensor, b: Tensor | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Tensor:
    (step,), (gap,) = _ints(stride, 1), _ints(dilation, 1)
    around = padding if isinstance(padding, str) else [0, *_ints(padding, 1)]
    y = F.conv2d(x.unsqueeze(-2), w.unsqueeze(-2), b, [1, step], around, [1, gap], groups)
    return y.squeeze(-2)


def _conv_transpose1d(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    (step,), (around,), (more,), (gap,) = (_ints(value, 1) for value in (stride, padding, output_padding, dilation))
    y = F.conv_transpose2d(x.unsqueeze(-2), w.unsqueeze(-2), b, [1, step], [0, around], [0, more], groups, [1, gap])
    return y.squeeze(-2)


def _conv3d(
    x: Tensor, w: Tensor, b: Tensor | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Tensor:
    """The sum over the depth of the kernel of 2-D convolutions, the depth of the volume in their batch."""
    steps, gaps = _ints(stride, 3), _ints(dilation, 3)
    if isinstance(padding, str):
        total = [gap * (size - 1) if padding == "same" else 0 for gap, size in zip(gaps, w.shape[2:], strict=True)]
        sides = [side for size in reversed(total) for side in (size // 2, size - size // 2)]
    else:
        sides = [side for size in reversed(_ints(padding, 3)) for side in (size, size)]
    padded = aten.constant_pad_nd(x, sides, 0.0) if any(sides) else x
    samples, channels, depth, height, width = padded.shape
    planes = (depth - gaps[0] * (w.shape[2] - 1) - 1) // steps[0] + 1
    total_map: Tensor | None = None
    for tap in range(w.shape[2]):
        first = tap * gaps[0]
        part = padded[:, :, first : first + (planes - 1) * steps[0] + 1 : steps[0]]
        flat = part.transpose(1, 2).reshape(samples * planes, channels, height, width)
        bias = b if tap == 0 else None
        y = F.conv2d(flat, w[:, :, tap], bias, steps[1:], 0, gaps[1:], groups)
        total_map = y if total_map is None else total_map + y
    assert total_map is not None
    return total_map.reshape(samples, planes, *total_map.shape[1:]).transpose(1, 2)


def _max_pool3d(
    x: Tensor, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Tensor:
    """A maximum over planes of maxima in planes."""
    sizes = _ints(kernel, 3)
    steps, around, gaps = _ints(stride or kernel, 3), _ints(padding, 3), _ints(dilation, 3)
    samples, channels, depth, height, width = x.shape
    flat = x.reshape(samples, channels * depth, height, width)
    inner = F.max_pool2d(flat, sizes[1:], steps[1:], around[1:], gaps[1:], ceil_mode)
    rows, cols = inner.shape[2:]
    columns = inner.reshape(samples, channels, depth, rows * cols)
    outer = F.max_pool2d(columns, [sizes[0], 1], [steps[0], 1], [around[0], 0], [gaps[0], 1], ceil_mode)
    return outer.reshape(samples, channels, outer.shape[2], rows, cols)


def _avg_pool3d(
    x: Tensor,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor: int | None = None,
) -> Tensor:
    """An average over planes of averages in planes."""
    sizes, steps, around = _ints(kernel, 3), _ints(stride or kernel, 3), _ints(padding, 3)
    samples, channels, depth, height, width = x.shape
    flat = x.reshape(samples, channels * depth, height, width)
    inner = F.avg_pool2d(flat, sizes[1:], steps[1:], around[1:], ceil_mode, count_include_pad, divisor)
    rows, cols = inner.shape[2:]
    columns = inner.reshape(samples, channels, depth, rows * cols)
    once = 1 if divisor else None
    outer = F.avg_pool2d(columns, [sizes[0], 1], [steps[0], 1], [around[0], 0], ceil_mode, count_include_pad, once)
    return outer.reshape(samples, channels, outer.shape[2], rows, cols)


def _adaptive_avg_pool3d(x: Tensor, size: Any) -> Tensor:
    sizes = [wanted if wanted is not None else have for wanted, have in zip(_ints(size, 3), x.shape[2:], strict=True)]
    samples, channels, depth, height, width = x.shape
    inner = F.adaptive_avg_pool2d(x.reshape(samples, channels * depth, height, width), sizes[1:])
    columns = inner.reshape(samples, channels, depth, sizes[1] * sizes[2])
    outer = F.adaptive_avg_pool2d(columns, [sizes[0], sizes[1] * sizes[2]])
    return outer.reshape(samples, channels, *sizes)


def _adaptive_max_pool2d(x: Tensor, size: Any) -> tuple[Tensor, Tensor]:
    """Values and PyTorch's positions in the plane; windows that are not all of one size are gathered first."""
    height, width = x.shape[-2:]
    rows, cols = _ints(size, 2)
    if height % rows == 0 and width % cols == 0 and x.dim() == 4:
        pooled: tuple[Tensor, Tensor] = aten.max_pool2d_with_indices(x, [height // rows, width // cols])
        return pooled
    row_of, col_of = _windows(height, rows), _windows(width, cols)  # [rows, most], [cols, most]
    where = row_of[:, None, :, None] * width + col_of[None, :, None, :]  # [rows, cols, most, most]
    where = where.reshape(rows, cols, -1)
    held = x.flatten(-2)[..., where]
    values, tap = held.max(dim=-1)
    return values, where.expand(*tap.shape, where.shape[-1]).gather(-1, tap.unsqueeze(-1)).squeeze(-1)


def _windows(length: int, count: int) -> Tensor:
    """The elements of each adaptive window; a window shorter than the longest repeats its last one."""
    which = torch.arange(count)
    starts, ends = which * length // count, ((which + 1) * length + count - 1) // count
    most = max(-(-(index + 1) * length // count) - index * length // count for index in range(count))
    return torch.minimum(starts[:, None] + torch.arange(most), ends[:, None] - 1)


def _adaptive_max_pool1d(x: Tensor, size: Any) -> tuple[Tensor, Tensor]:
    values, where = _adaptive_max_pool2d(x.unsqueeze(-2), [1, *_ints(size, 1)])
    return values.squeeze(-2), where.squeeze(-2)


def _adaptive_max_pool3d(x: Tensor, size: Any) -> tuple[Tensor, Tensor]:
    """A maximum over planes of maxima in planes, and PyTorch's positions in the volume."""
    samples, channels, depth, height, width = x.shape
    wanted = zip(_ints(size, 3), x.shape[2:], strict=True)
    planes, rows, cols = (have if want is None else want for want, have in wanted)
    inner, pixel = _adaptive_max_pool2d(x.reshape(samples, channels * depth, height, width), [rows, cols])
    columns = [samples, channels, depth, rows * cols]
    values, place = _adaptive_max_pool2d(inner.reshape(columns), [planes, rows * cols])
    plane = place // (rows * cols)
    position = plane * (height * width) + pixel.reshape(columns).gather(2, plane)
    shape = [samples, channels, planes, rows, cols]
    return values.reshape(shape), position.reshape(shape)


def _ints(value: Any, count: int) -> list[int]:
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    return values * count if len(values) == 1 else values


def _with_batch(function: Function) -> Function:
    """Pools take [C, H, W] too: as a batch of one."""

    def pool(x: Tensor, *args: Any, **settings: Any) -> Any:
        if x.dim() != 3:
            return function(x, *args, **settings)
        y = function(x.unsqueeze(0), *args, **settings)
        return y.squeeze(0) if isinstance(y, Tensor) else tuple(part.squeeze(0) for part in y)

    return pool


def _conv_transpose3d(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    """The sum over the depth of the kernel of 2-D ones, each plane put `stride` apart."""
    steps, around, more, gaps = (_ints(value, 3) for value in (stride, padding, output_padding, dilation))
    samples, channels, depth, height, width = x.shape
    flat = x.transpose(1, 2).reshape(samples * depth, channels, height, width)
    spread = (depth - 1) * steps[0] + 1
    planes = spread + gaps[0] * (w.shape[2] - 1) + more[0]
    total: Tensor | None = None
    for tap in range(w.shape[2]):
        y = F.conv_transpose2d(flat, w[:, :, tap], None, steps[1:], around[1:], more[1:], groups, gaps[1:])
        y = y.reshape(samples, depth, *y.shape[1:]).transpose(1, 2).unsqueeze(3)  # [N, Co, D, 1, H, W]
        y = aten.constant_pad_nd(y, [0, 0, 0, 0, 0, steps[0] - 1]).flatten(2, 3)[:, :, :spread]
        first = tap * gaps[0]
        y = aten.constant_pad_nd(y, [0, 0, 0, 0, first, planes - first - spread])
        total = y if total is None else total + y
    assert total is not None
    total = total[:, :, around[0] : planes - around[0]]
    return total if b is None else total + b.reshape(1, -1, 1, 1, 1)


DIMENSIONS: dict[Any, Function] = {
    aten.conv1d.default: _conv1d,
    aten.conv1d.padding: _conv1d,
    aten.conv_transpose1d.default: _conv_transpose1d,
    aten.conv3d.default: _conv3d,
    aten.conv3d.padding: _conv3d,
    aten.max_pool3d.default: _max_pool3d,
    aten.avg_pool3d.default: _avg_pool3d,
    aten.adaptive_avg_pool3d.default: _adaptive_avg_pool3d,
    aten.adaptive_max_pool1d.default: _adaptive_max_pool1d,
    aten.adaptive_max_pool2d.default: _adaptive_max_pool2d,
    aten.adaptive_max_pool3d.default: _adaptive_max_pool3d,
    aten.max_pool2d.default: _with_batch(aten.max_pool2d.default),
    aten.max_pool2d_with_indices.default: _with_batch(aten.max_pool2d_with_indices.default),
    aten.avg_pool2d.default: _with_batch(aten.avg_pool2d.default),
    aten.adaptive_avg_pool2d.default: _with_batch(aten.adaptive_avg_pool2d.default),
    aten.conv_transpose3d.input: _conv_transpose3d,
}
