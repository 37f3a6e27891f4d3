"""Elements by their positions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from gfcompile.export.emitter import Emitter, NoTranslation, Value
from gfcompile.export.table import Table

aten = torch.ops.aten
TABLE = Table()
Indices = Sequence[Value | None]


@TABLE.writes(aten.gather.default)
def _gather(to: Emitter, out: Value, x: Value, axis: int, index: Value) -> str:
    return to.op("GatherElements", x, index, axis=axis)


@TABLE.writes(aten.index_select.default)
def _index_select(to: Emitter, out: Value, x: Value, axis: int, index: Value) -> str:
    return to.op("Gather", x, index, axis=axis)


@TABLE.writes(aten.embedding.default)
def _embedding(to: Emitter, out: Value, table: Value, index: Value, *_: object) -> str:
    return to.op("Gather", table, index, axis=0)


@TABLE.writes(aten.scatter.value)
def _scatter_value(to: Emitter, out: Value, x: Value, axis: int, index: Value, number: float) -> str:
    return to.op("ScatterElements", x, index, to.filled(index.shape, number, x.dtype), axis=axis)


@TABLE.writes(aten.scatter.src)
def _scatter(to: Emitter, out: Value, x: Value, axis: int, index: Value, source: Value) -> str:
    return to.op("ScatterElements", x, index, _corner(to, source, index.shape), axis=axis)


@TABLE.writes(aten.scatter_add.default)
def _scatter_add(to: Emitter, out: Value, x: Value, axis: int, index: Value, source: Value) -> str:
    return to.op("ScatterElements", x, index, _corner(to, source, index.shape), axis=axis, reduction="add")


def _corner(to: Emitter, source: Value, shape: tuple[int, ...]) -> str:
    """PyTorch's source may be larger than the index; ONNX's may not."""
    if source.shape == shape:
        return source.name
    return to.op("Slice", source, [0] * len(shape), list(shape), list(range(len(shape))))


@TABLE.writes(aten.index.Tensor, aten._unsafe_index.Tensor)
def _index(to: Emitter, out: Value, x: Value, indices: Indices) -> str:
    indexed = [axis for axis, index in enumerate(indices) if index is not None]
    if len(indexed) == 1:
        (axis,) = indexed
        return to.op("Gather", x, _position(to, indices[axis]), axis=axis)
    rows, position, rest = _rows(to, x, indices)
    found = to.op("Gather", rows, position, axis=0)  # [index..., rest...]
    first, last = indexed[0], indexed[-1]
    if first and last - first == len(indexed) - 1:  # adjacent: the index's axes take the place of the indexed ones
        index_rank = out.rank - len(rest)
        order = [*range(index_rank, index_rank + first), *range(index_rank), *range(index_rank + first, out.rank)]
        found = to.op("Transpose", found, perm=order)
    return found


@TABLE.writes(aten.index_put.default, aten._unsafe_index_put.default)
def _index_put(to: Emitter, out: Value, x: Value, indices: Indices, values: Value, accumulate: bool = False) -> str:
    indexed = [axis for axis, index in enumerate(indices) if index is not None]
    if indexed != list(range(indexed[0], indexed[-1] + 1)):
        raise NoTranslation("gaps between its indices")
    rows, position, rest = _rows(to, x, indices)
    shape = torch.broadcast_shapes(*(index.shape for index in indices if index is not None))
    first = indexed[0]
    whole = [*(x.shape[axis] for axis in rest[:first]), *shape, *(x.shape[axis] for axis in rest[first:])]
    updates = to.op("Expand", values, whole)
    order = [*range(first, first + len(shape)), *range(first), *range(first + len(shape), len(whole))]
    updates = to.op("Transpose", updates, perm=order)
    where = to.op("Reshape", to.op("Expand", position, list(shape)), [*shape, 1])
    put = to.op("ScatterND", rows, where, updates, reduction="add" if accumulate else None)
    leading = [*indexed, *rest]
    back = to.op("Reshape", put, [x.shape[axis] for axis in leading])
    return to.op("Transpose", back, perm=[leading.index(axis) for axis in range(x.rank)])


def _rows(to: Emitter, x: Value, indices: Indices) -> tuple[str, str, list[int]]:
    """x as [indexed axes as one, rest...]; the indices as one along that axis; and which axes are the rest."""
    indexed = [axis for axis, index in enumerate(indices) if index is not None]
    rest = [axis for axis in range(x.rank) if axis not in indexed]
    lengths = [x.shape[axis] for axis in indexed]
    order = [*indexed, *rest]
    leading = x.name if order == sorted(order) else to.op("Transpose", x, perm=order)
    rows = to.op("Reshape", leading, [math.prod(lengths), *(x.shape[axis] for axis in rest)])
    position: str | None = None
    for axis, length in zip(indexed, lengths, strict=True):
        index = _position(to, indices[axis])
        wrapped = to.op("Where", to.op("Less", index, to.scalar(0, torch.int64)), _plus(to, index, length), index)
        scaled = position and to.op("Mul", position, to.scalar(length, torch.int64))
        position = to.op("Add", scaled, wrapped) if scaled else wrapped
    return rows, str(position), rest


def _plus(to: Emitter, index: str, length: int) -> str:
    return to.op("Add", index, to.scalar(length, torch.int64))


def _position(to: Emitter, index: Value | None) -> str:
    if index is None or index.dtype in (torch.bool, torch.uint8):
        raise NoTranslation("by a mask, which gives no fixed shape")
    return to.cast(index, torch.int64)


@TABLE.writes(aten.slice_scatter.default)
def _slice_scatter(
    to: Emitter,
    out: Value,
    x: Value,
    source: Value,
    axis: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> str:
    places = range(x.shape[axis])[slice(start, end, step)]
    return _put_along(to, x, source.name, source.shape, axis % x.rank, places)


@TABLE.writes(aten.select_scatter.default)
def _select_scatter(to: Emitter, out: Value, x: Value, source: Value, axis: int, index: int) -> str:
    axis %= x.rank
    shape = (*source.shape[:axis], 1, *source.shape[axis:])
    return _put_along(to, x, to.op("Reshape", source, shape), shape, axis, [index % x.shape[axis]])


def _put_along(to: Emitter, x: Value, source: str, shape: tuple[int, ...], axis: int, places: Sequence[int]) -> str:
    along = [1] * x.rank
    along[axis] = len(places)
    index = to.op("Expand", np.array(places, dtype=np.int64).reshape(along), shape)
    return to.op("ScatterElements", x, index, source, axis=axis)


@TABLE.writes(aten.unfold.default)
def _unfold(to: Emitter, out: Value, x: Value, axis: int, size: int, step: int) -> str:
    """Overlapping windows along an axis; their elements are a new last axis."""
    axis %= x.rank
    index = np.arange(out.shape[axis], dtype=np.int64)[:, None] * step + np.arange(size, dtype=np.int64)
    windows = to.op("Gather", x, index, axis=axis)
    order = [place for place in range(x.rank + 1) if place != axis + 1]
    return to.op("Transpose", windows, perm=[*order, axis + 1])


@TABLE.writes(aten.as_strided.default)
def _as_strided(
    to: Emitter, out: Value, x: Value, size: Sequence[int], stride: Sequence[int], offset: int | None = None
) -> str:
    return to.op("Gather", _memory(to, x), _strided_index(to, size, stride, offset or 0), axis=0)


@TABLE.writes(aten.as_strided_scatter.default)
def _as_strided_scatter(
    to: Emitter,
    out: Value,
    x: Value,
    source: Value,
    size: Sequence[int],
    stride: Sequence[int],
    offset: int | None = None,
) -> str:
    index = to.op("Reshape", _strided_index(to, size, stride, offset or 0), [-1])
    put = to.op("ScatterElements", _memory(to, x), index, to.op("Reshape", source, [-1]), axis=0)
    return to.op("Reshape", put, out.shape)


def _memory(to: Emitter, x: Value) -> str:
    """The tensor as it lies in memory: ONNX knows no other order than the logical one."""
    if not x.contiguous:
        raise NoTranslation("strides over a tensor that is not contiguous")
    return to.op("Reshape", x, [-1])


def _strided_index(to: Emitter, size: Sequence[int], stride: Sequence[int], offset: int) -> str:
    """offset + sum of i*stride over the axes, from one short vector per axis."""
    total = to.filled(size, offset, torch.int64)
    for axis, (length, pace) in enumerate(zip(size, stride, strict=True)):
        along = np.arange(length, dtype=np.int64) * pace
        total = to.op("Add", total, along.reshape([-1] + [1] * (len(size) - axis - 1)))
    return total
