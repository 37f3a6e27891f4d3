"""Patch sums, means and broadcasts: crop, pad to whole patches, and reduce or repeat. No constant but the areas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from gfcompile.export.emitter import Emitter, Operand, Value
from gfcompile.export.table import Table
from gfcompile.geometry.convolution import Windows
from gfcompile.geometry.grids import NOWHERE, parents
from gfcompile.ops import gf

TABLE = Table()
Ints = Sequence[int]


@dataclass(frozen=True)
class Patches:
    """Windows over the two image axes of a tensor of `shape`."""

    shape: tuple[int, ...]
    windows: tuple[Windows, Windows]
    axes: tuple[int, int]

    @classmethod
    def of(cls, shape: Ints, rows: Ints, cols: Ints, channels_last: bool) -> Patches:
        """From the operator's arguments."""
        return cls(tuple(shape), (Windows(*rows), Windows(*cols)), (1, 2) if channels_last else (2, 3))

    @property
    def covered(self) -> list[tuple[int, int]]:
        """Along each axis, the pixels that lie in a patch."""
        found = []
        for axis, windows in zip(self.axes, self.windows, strict=True):
            end = windows.origin + windows.count * windows.pitch
            start = max(windows.lo, windows.origin, 0)
            found.append((start, max(start, min(windows.hi, end, self.shape[axis]))))
        return found

    @property
    def overhang(self) -> tuple[list[int], list[int]]:
        """How far the patches reach beyond the covered pixels, before and after."""
        before, after = [], []
        for (start, stop), windows in zip(self.covered, self.windows, strict=True):
            whole = windows.count * windows.pitch
            before.append(min(start - windows.origin, whole))
            after.append(whole - before[-1] - (stop - start))
        return before, after

    @property
    def split_shape(self) -> list[int]:
        """Each image axis as two: patches and the pixels of one."""
        found = list(self.shape)
        for axis, windows in reversed(list(zip(self.axes, self.windows, strict=True))):
            found[axis : axis + 1] = [windows.count, windows.pitch]
        return found

    @property
    def inner_axes(self) -> list[int]:
        """The axes inside a patch, once rows and columns are split."""
        return [self.axes[0] + 1, self.axes[1] + 2]

    @property
    def area(self) -> np.ndarray:
        """Real pixels of every patch, broadcast against [N, C, P, Q] or [N, P, Q, C]."""
        high, wide = ([stop - start for start, stop in windows.spans()] for windows in self.windows)
        area = np.outer(high, wide).astype(np.float32)
        if (area == area[0, 0]).all():
            area = area[:1, :1]
        return area[:, :, None] if self.axes == (1, 2) else area


def sums(to: Emitter, x: Operand, patches: Patches) -> str:
    """Crop to what the patches cover, pad to whole ones, split, and sum inside them."""
    start, stop = (list(edge) for edge in zip(*patches.covered, strict=True))
    before, after = patches.overhang
    cropped = to.op("Slice", x, start, stop, list(patches.axes))
    padded = to.op("Pad", cropped, [*before, *after], None, list(patches.axes))
    split = to.op("Reshape", padded, patches.split_shape)
    return to.op("ReduceSum", split, patches.inner_axes, keepdims=0)


def means(to: Emitter, x: Operand, patches: Patches) -> str:
    """Sums over the pixels that a patch has on the map."""
    return to.op("Div", sums(to, x, patches), np.maximum(patches.area, 1))


def broadcast(to: Emitter, q: Operand, patches: Patches) -> str:
    """The way back: repeat each patch's value, crop the overhang, zeros where no patch is."""
    before, _ = patches.overhang
    whole = list(patches.shape)
    for axis, windows in zip(patches.axes, patches.windows, strict=True):
        whole[axis] = windows.count * windows.pitch
    single = [1 if axis in patches.inner_axes else size for axis, size in enumerate(patches.split_shape)]
    repeated = to.op("Expand", to.op("Reshape", q, single), patches.split_shape)
    joined = to.op("Reshape", repeated, whole)
    stop = [first + end - start for first, (start, end) in zip(before, patches.covered, strict=True)]
    cropped = to.op("Slice", joined, before, stop, list(patches.axes))
    around = (
        [start for start, _ in patches.covered],
        [patches.shape[axis] - end for axis, (_, end) in zip(patches.axes, patches.covered, strict=True)],
    )
    return to.op("Pad", cropped, [*around[0], *around[1]], None, list(patches.axes))


@TABLE.writes(gf.patch_sum.default)
def _patch_sum(to: Emitter, out: Value, x: Value, rows: Ints, cols: Ints, channels_last: bool = False) -> str:
    return sums(to, x, Patches.of(x.shape, rows, cols, channels_last))


@TABLE.writes(gf.patch_mean.default)
def _patch_mean(to: Emitter, out: Value, x: Value, rows: Ints, cols: Ints, channels_last: bool = False) -> str:
    return means(to, x, Patches.of(x.shape, rows, cols, channels_last))


@TABLE.writes(gf.patch_broadcast.default)
def _patch_broadcast(
    to: Emitter, out: Value, q: Value, rows: Ints, cols: Ints, size: Ints, channels_last: bool = False
) -> str:
    return broadcast(to, q, Patches.of(out.shape, rows, cols, channels_last))


@TABLE.writes(gf.scale_by_area.default)
def _scale_by_area(
    to: Emitter, out: Value, q: Value, rows: Ints, cols: Ints, inverse: bool, channels_last: bool = False
) -> str:
    area = Patches.of(q.shape, rows, cols, channels_last).area
    factor = np.where(area > 0, 1 / np.maximum(area, 1), 0).astype(np.float32) if inverse else area
    return to.op("Mul", q, factor)


@TABLE.writes(gf.regrid.default)
def _regrid(
    to: Emitter,
    out: Value,
    q: Value,
    rows: Ints,
    cols: Ints,
    to_rows: Ints,
    to_cols: Ints,
    channels_last: bool = False,
) -> str:
    first = 1 if channels_last else 2
    found = q.name
    for axis, coarse, fine in ((first, rows, to_rows), (first + 1, cols, to_cols)):
        index = np.array(parents(Windows(*fine), Windows(*coarse)), dtype=np.int64)
        found = to.op("Gather", found, np.maximum(index, 0), axis=axis)
        if (index == NOWHERE).any():
            inside = (index != NOWHERE).reshape([-1] + [1] * (3 - axis))
            found = to.op("Where", inside, found, to.scalar(0, torch.float32))
    return found
