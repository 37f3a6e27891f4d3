"""Pooling on [N, H, W, C] images."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.library import custom_op

from gfcompile.ops.images import from_nchw, to_nchw
from gfcompile.ops.statistics import LARGEST_BYTE

aten = torch.ops.aten


@custom_op("gf::max_pool2d_nhwc", mutates_args=())
def max_pool2d_nhwc(
    x: Tensor, kernel: list[int], stride: list[int], padding: list[int], dilation: list[int], ceil_mode: bool
) -> tuple[Tensor, Tensor]:
    """Max pooling, and which tap of its window each maximum was: one byte where PyTorch keeps a 64-bit position."""
    y, index = aten.max_pool2d_with_indices(to_nchw(x, True), kernel, stride, padding, dilation, ceil_mode)
    rows, cols = _window_starts(y, stride, padding)
    row, col = (index // x.shape[2] - rows) // dilation[0], (index % x.shape[2] - cols) // dilation[1]
    return from_nchw(y, True), from_nchw((row * kernel[1] + col).to(_tap_type(kernel)), True)


def _window_starts(y: Tensor, stride: list[int], padding: list[int]) -> tuple[Tensor, Tensor]:
    rows = torch.arange(y.shape[2]) * stride[0] - padding[0]
    cols = torch.arange(y.shape[3]) * stride[1] - padding[1]
    return rows[:, None], cols[None, :]


def _tap_type(kernel: list[int]) -> torch.dtype:
    return torch.uint8 if kernel[0] * kernel[1] <= LARGEST_BYTE else torch.int32


@max_pool2d_nhwc.register_fake
def _(
    x: Tensor, kernel: list[int], stride: list[int], padding: list[int], dilation: list[int], ceil_mode: bool
) -> tuple[Tensor, Tensor]:
    y, _ = aten.max_pool2d_with_indices(x.permute(0, 3, 1, 2), kernel, stride, padding, dilation, ceil_mode)
    shape = (y.shape[0], y.shape[2], y.shape[3], y.shape[1])
    return x.new_empty(shape), x.new_empty(shape, dtype=_tap_type(kernel))


@custom_op("gf::pool_positions_nhwc", mutates_args=())
def pool_positions_nhwc(
    taps: Tensor, width: int, kernel: list[int], stride: list[int], padding: list[int], dilation: list[int]
) -> Tensor:
    """PyTorch's indices of `max_pool2d_nhwc`'s taps: positions in the pooled image's plane, `width` pixels wide."""
    tap = to_nchw(taps).long()
    rows, cols = _window_starts(tap, stride, padding)
    row, col = tap // kernel[1] * dilation[0] + rows, tap % kernel[1] * dilation[1] + cols
    return from_nchw(row * width + col)


@pool_positions_nhwc.register_fake
def _(
    taps: Tensor, width: int, kernel: list[int], stride: list[int], padding: list[int], dilation: list[int]
) -> Tensor:
    return taps.new_empty(taps.shape, dtype=torch.int64)


@custom_op("gf::max_pool2d_values_nhwc", mutates_args=())
def max_pool2d_values_nhwc(
    x: Tensor, kernel: list[int], stride: list[int], padding: list[int], dilation: list[int], ceil_mode: bool
) -> Tensor:
    """Max pooling alone."""
    return from_nchw(torch.max_pool2d(to_nchw(x), kernel, stride, padding, dilation, ceil_mode))


@max_pool2d_values_nhwc.register_fake
def _(
    x: Tensor, kernel: list[int], stride: list[int], padding: list[int], dilation: list[int], ceil_mode: bool
) -> Tensor:
    y, _ = aten.max_pool2d_with_indices(x.permute(0, 3, 1, 2), kernel, stride, padding, dilation, ceil_mode)
    return x.new_empty((y.shape[0], y.shape[2], y.shape[3], y.shape[1]))


@custom_op("gf::max_pool2d_backward_nhwc", mutates_args=())
def max_pool2d_backward_nhwc(
    gy: Tensor,
    taps: Tensor,
    size: list[int],
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> Tensor:
    """Each gradient goes to the pixel that was the maximum."""
    rows, cols = _window_starts(to_nchw(gy, True), stride, padding)
    tap = to_nchw(taps, True).to(torch.int64)
    row, col = rows + tap // kernel[1] * dilation[0], cols + tap % kernel[1] * dilation[1]
    gradient, where = to_nchw(gy, True).flatten(2), (row * size[1] + col).flatten(2)
    spread = gradient.new_zeros((*gradient.shape[:2], size[0] * size[1])).scatter_add(2, where, gradient)
    return from_nchw(spread.unflatten(2, size), True)


@max_pool2d_backward_nhwc.register_fake
def _(
    gy: Tensor,
    taps: Tensor,
    size: list[int],
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> Tensor:
    return gy.new_empty((gy.shape[0], *size, gy.shape[3]))


@custom_op("gf::avg_pool2d_nhwc", mutates_args=())
def avg_pool2d_nhwc(
    x: Tensor, kernel: list[int], stride: list[int], padding: list[int], ceil_mode: bool, count_pad: bool, divisor: int
) -> Tensor:
    """Average pooling; `divisor` 0 means the window's own size."""
    return from_nchw(aten.avg_pool2d(to_nchw(x), kernel, stride, padding, ceil_mode, count_pad, divisor or None))


@avg_pool2d_nhwc.register_fake
def _(
    x: Tensor, kernel: list[int], stride: list[int], padding: list[int], ceil_mode: bool, count_pad: bool, divisor: int
) -> Tensor:
    y = aten.avg_pool2d(x.permute(0, 3, 1, 2), kernel, stride, padding, ceil_mode, count_pad, divisor or None)
    return x.new_empty((y.shape[0], y.shape[2], y.shape[3], y.shape[1]))


@custom_op("gf::avg_pool2d_backward_nhwc", mutates_args=())
def avg_pool2d_backward_nhwc(
    gy: Tensor,
    size: list[int],
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    ceil_mode: bool,
    count_pad: bool,
    divisor: int,
) -> Tensor:
    """Each gradient spread over its window."""
    x = gy.new_empty((gy.shape[0], gy.shape[3], *size))
    settings = (kernel, stride, padding, ceil_mode, count_pad, divisor or None)
    return from_nchw(aten.avg_pool2d_backward(to_nchw(gy).contiguous(), x, *settings))


@avg_pool2d_backward_nhwc.register_fake
def _(
    gy: Tensor,
    size: list[int],
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    ceil_mode: bool,
    count_pad: bool,
    divisor: int,
) -> Tensor:
    return gy.new_empty((gy.shape[0], *size, gy.shape[3]))


@custom_op("gf::adaptive_avg_pool2d_nhwc", mutates_args=())
def adaptive_avg_pool2d_nhwc(x: Tensor, size: list[int]) -> Tensor:
    """Average pooling to a given size."""
    return from_nchw(aten._adaptive_avg_pool2d(to_nchw(x), size))


@adaptive_avg_pool2d_nhwc.register_fake
def _(x: Tensor, size: list[int]) -> Tensor:
    return x.new_empty((x.shape[0], *size, x.shape[3]))


@custom_op("gf::adaptive_avg_pool2d_backward_nhwc", mutates_args=())
def adaptive_avg_pool2d_backward_nhwc(gy: Tensor, size: list[int]) -> Tensor:
    """Each gradient spread over its window of the [H, W] input."""
    x = gy.new_empty((gy.shape[0], gy.shape[3], *size))
    return from_nchw(aten._adaptive_avg_pool2d_backward(to_nchw(gy).contiguous(), x))


@adaptive_avg_pool2d_backward_nhwc.register_fake
def _(gy: Tensor, size: list[int]) -> Tensor:
    return gy.new_empty((gy.shape[0], *size, gy.shape[3]))
