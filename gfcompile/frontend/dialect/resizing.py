"""Resizing and the padding modes: one sparse map per axis (`axis_maps`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gfcompile.ops import gf

aten = torch.ops.aten
Function = Callable[..., Any]


def _resize(kind: str, *, takes_align: bool) -> Function:
    def resize_vec(x: Tensor, size: Sequence[int] | None, *rest: Any) -> Tensor:
        align, scales = rest if takes_align else (False, *rest)
        spatial = x.shape[2:]
        if size is None:
            sizes = [math.floor(length * scale) for length, scale in zip(spatial, scales, strict=True)]
        else:
            sizes, scales = list(size), None
        return _resize_axes(x, kind, sizes, bool(align), scales or [None] * len(sizes))

    return resize_vec


def _resize_default(kind: str, *, takes_align: bool) -> Function:
    def resize_default(x: Tensor, size: Sequence[int], *rest: Any) -> Tensor:
        align, *scales = rest if takes_align else (False, *rest)
        return _resize_axes(x, kind, list(size), bool(align), [*scales, *[None] * (len(size) - len(scales))])

    return resize_default


def _resize_axes(x: Tensor, kind: str, sizes: list[int], align: bool, scales: Sequence[float | None]) -> Tensor:
    for axis, (size, scale) in enumerate(zip(sizes, scales, strict=True), 2):
        if size != x.shape[axis] or (scale is not None and scale != 1):
            x = gf.axis_map(x, axis, size, kind, [float(align), float(scale or 0)], False)
    return x


def _pad(x: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    if mode == "constant":
        return aten.constant_pad_nd(x, pad, 0.0 if value is None else value)
    return _pad_axes(mode)(x, pad)


def _pad_axes(mode: str) -> Function:
    def pad_axes(x: Tensor, pad: Sequence[int]) -> Tensor:
        for position in range(0, len(pad), 2):
            before, after = int(pad[position]), int(pad[position + 1])
            axis = x.dim() - 1 - position // 2
            if before or after:
                size = x.shape[axis] + before + after
                x = gf.axis_map(x, axis, size, mode, [float(before), float(after)], False)
        return x

    return pad_axes


RESIZING: dict[Any, Function] = {
    aten.upsample_nearest1d.vec: _resize("nearest", takes_align=False),
    aten.upsample_nearest2d.vec: _resize("nearest", takes_align=False),
    aten.upsample_nearest3d.vec: _resize("nearest", takes_align=False),
    aten._upsample_nearest_exact1d.vec: _resize("nearest-exact", takes_align=False),
    aten._upsample_nearest_exact2d.vec: _resize("nearest-exact", takes_align=False),
    aten._upsample_nearest_exact3d.vec: _resize("nearest-exact", takes_align=False),
    aten.upsample_linear1d.vec: _resize("linear", takes_align=True),
    aten.upsample_bilinear2d.vec: _resize("linear", takes_align=True),
    aten.upsample_trilinear3d.vec: _resize("linear", takes_align=True),
    aten.upsample_bicubic2d.vec: _resize("cubic", takes_align=True),
    aten._upsample_bilinear2d_aa.vec: _resize("linear-antialias", takes_align=True),
    aten._upsample_bicubic2d_aa.vec: _resize("cubic-antialias", takes_align=True),
    aten.upsample_nearest2d.default: _resize_default("nearest", takes_align=False),
    aten._upsample_nearest_exact2d.default: _resize_default("nearest-exact", takes_align=False),
    aten.upsample_bilinear2d.default: _resize_default("linear", takes_align=True),
    aten.upsample_bicubic2d.default: _resize_default("cubic", takes_align=True),
    aten.pad.default: _pad,
    aten.reflection_pad1d.default: _pad_axes("reflect"),
    aten.reflection_pad2d.default: _pad_axes("reflect"),
    aten.reflection_pad3d.default: _pad_axes("reflect"),
    aten.replication_pad1d.default: _pad_axes("replicate"),
    aten.replication_pad2d.default: _pad_axes("replicate"),
    aten.replication_pad3d.default: _pad_axes("replicate"),
    aten._pad_circular.default: _pad_axes("circular"),
}
