"""Convolutions and their gradients, in any number of dimensions, transposed and grouped ones included."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gfcompile.export.emitter import Emitter, Operand, Value
from gfcompile.export.table import Result, Table

aten = torch.ops.aten
TABLE = Table()


@TABLE.writes(aten.convolution.default)
def _convolution(
    to: Emitter,
    out: Value,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> str:
    settings = geometry(x.rank - 2, stride, padding, dilation, groups)
    if transposed:
        extra = per_axis(output_padding, x.rank - 2)
        return to.op("ConvTranspose", x, weight, bias, output_padding=extra, **settings)
    return to.op("Conv", x, weight, bias, **settings)


@TABLE.writes(aten.convolution_backward.default)
def _convolution_backward(
    to: Emitter,
    out: tuple[Value | None, ...],
    gy: Value,
    x: Value,
    weight: Value,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    mask: Sequence[bool],
) -> Result:
    """A transposed convolution's input gradient is an ordinary convolution, and its weight gradient has the operands
    of the ordinary one exchanged."""
    wanted = [result is not None and asked for result, asked in zip(out, mask, strict=True)]
    options = (stride, padding, dilation, groups)
    gx = gw = gb = None
    if wanted[0] and transposed:
        gx = to.op("Conv", gy, weight, **geometry(x.rank - 2, *options))
    elif wanted[0]:
        gx = input_gradient(to, gy, weight, weight.shape, x.shape[2:], *options)
    if wanted[1]:
        image, other = (gy, x) if transposed else (x, gy)
        gw = weight_gradient(to, other, image, weight.shape, *options)
    if wanted[2]:
        gb = to.op("ReduceSum", gy, [0, *range(2, gy.rank)], keepdims=0)
    return gx, gw, gb


def per_axis(values: Sequence[int], rank: int) -> list[int]:
    """One number stands for all axes."""
    return [int(values[0])] * rank if len(values) == 1 else [int(value) for value in values]


def geometry(
    rank: int, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int
) -> dict[str, Any]:
    """The attributes of Conv and ConvTranspose."""
    return {
        "strides": per_axis(stride, rank),
        "pads": per_axis(padding, rank) * 2,
        "dilations": per_axis(dilation, rank),
        "group": groups,
    }


def input_gradient(
    to: Emitter,
    gy: Value,
    weight: Operand,
    shape: Sequence[int],
    size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> str:
    """ConvTranspose; rows of x that the last window did not reach are its output padding."""
    rank = gy.rank - 2
    settings = geometry(rank, stride, padding, dilation, groups)
    reached = [
        (n - 1) * s - 2 * p + d * (k - 1) + 1
        for n, s, p, d, k in zip(
            gy.shape[2:], settings["strides"], settings["pads"][:rank], settings["dilations"], shape[2:], strict=True
        )
    ]
    extra = [wanted - got for wanted, got in zip(size, reached, strict=True)]
    return to.op("ConvTranspose", gy, weight, output_padding=extra, **settings)


def weight_gradient(
    to: Emitter,
    gy: Value,
    x: Value,
    shape: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> str:
    """gw[co, ci, u] = sum over n, p of gy[n, co, p] * x[n, ci, p*stride + u*dilation - padding]

    This is a convolution of x by gy with the samples as channels: what strides there dilates here, and conversely.
    """
    rank = x.rank - 2
    space, tail = list(range(3, 3 + rank)), list(range(2, 2 + rank))
    channels = x.shape[1] // groups
    split = to.op("Reshape", x, [x.shape[0], groups, channels, *x.shape[2:]])
    moved = to.op("Transpose", split, perm=[2, 1, 0, *space])  # [Ci/g, g, N, ...]
    image = to.op("Reshape", moved, [channels, groups * x.shape[0], *x.shape[2:]])
    kernel = to.op("Transpose", gy, perm=[1, 0, *tail])  # [Co, N, ...]
    swapped = geometry(rank, dilation, padding, stride, groups)
    taps = to.op("Conv", image, kernel, **swapped)  # [Ci/g, Co, k or more]
    cropped = to.op("Slice", taps, [0] * rank, list(shape[2:]), tail)  # beyond: rows that no window reached
    return to.op("Transpose", cropped, perm=[1, 0, *tail])
