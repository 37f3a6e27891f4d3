"""Patch sums, means and broadcasts: windows are two lists (rows, cols) of five integers, `Windows.as_list()`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.library import custom_op

from gfcompile.geometry.convolution import Windows
from gfcompile.ops.images import from_nchw, to_nchw


def _membership(windows: list[int], size: int, like: Tensor) -> Tensor:
    """0/1 matrix [patches, size]: which rows belong to which patch."""
    table = torch.zeros(windows[0], size, dtype=like.dtype, device=like.device)
    for patch, (start, stop) in enumerate(Windows(*windows).spans()):
        table[patch, start:stop] = 1
    return table


def patch_area(rows: list[int], cols: list[int], like: Tensor) -> Tensor:
    """Real pixels of every patch [P, Q]."""
    high = torch.tensor([stop - start for start, stop in Windows(*rows).spans()], dtype=like.dtype)
    wide = torch.tensor([stop - start for start, stop in Windows(*cols).spans()], dtype=like.dtype)
    return torch.outer(high, wide)


@custom_op("gf::patch_sum", mutates_args=())
def patch_sum(x: Tensor, rows: list[int], cols: list[int], channels_last: bool = False) -> Tensor:
    """Sum of `x` over each patch's window."""
    image = to_nchw(x, channels_last)
    high, wide = _membership(rows, image.shape[2], x), _membership(cols, image.shape[3], x)
    return from_nchw(high @ image @ wide.T, channels_last)


@patch_sum.register_fake
def _(x: Tensor, rows: list[int], cols: list[int], channels_last: bool = False) -> Tensor:
    return x.new_empty(patch_shape(x, rows, cols, channels_last))


def patch_shape(x: Tensor, rows: list[int], cols: list[int], channels_last: bool) -> tuple[int, ...]:
    """Shape of the patch values of an image."""
    if channels_last:
        return (x.shape[0], rows[0], cols[0], x.shape[3])
    return (x.shape[0], x.shape[1], rows[0], cols[0])


@custom_op("gf::patch_mean", mutates_args=())
def patch_mean(x: Tensor, rows: list[int], cols: list[int], channels_last: bool = False) -> Tensor:
    """Mean of `x` over the real pixels of each patch."""
    sums = to_nchw(patch_sum(x, rows, cols, channels_last), channels_last)
    return from_nchw(sums / patch_area(rows, cols, x).clamp(min=1), channels_last)


@patch_mean.register_fake
def _(x: Tensor, rows: list[int], cols: list[int], channels_last: bool = False) -> Tensor:
    return x.new_empty(patch_shape(x, rows, cols, channels_last))


@custom_op("gf::patch_broadcast", mutates_args=())
def patch_broadcast(
    q: Tensor, rows: list[int], cols: list[int], size: list[int], channels_last: bool = False
) -> Tensor:
    """Every pixel of a window takes its patch's value; pixels in no window take zero."""
    patches = to_nchw(q, channels_last)
    high, wide = _membership(rows, size[0], q), _membership(cols, size[1], q)
    return from_nchw(high.T @ patches @ wide, channels_last)


@patch_broadcast.register_fake
def _(q: Tensor, rows: list[int], cols: list[int], size: list[int], channels_last: bool = False) -> Tensor:
    if channels_last:
        return q.new_empty((q.shape[0], size[0], size[1], q.shape[3]))
    return q.new_empty((q.shape[0], q.shape[1], size[0], size[1]))
