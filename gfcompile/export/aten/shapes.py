"""The same elements in another shape, order or type; parts and joins of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gfcompile.export.emitter import Emitter, Value
from gfcompile.export.table import Result, Table

aten = torch.ops.aten
TABLE = Table()
END = 2**63 - 1  # what torch.export writes for "to the end"


@TABLE.writes(
    aten.alias.default, aten.clone.default, aten.detach.default, aten.lift_fresh_copy.default, aten.contiguous.default
)
def _identity(to: Emitter, out: Value, x: Value) -> str:
    return to.op("Identity", x)


@TABLE.writes(aten._to_copy.default)
def _to_copy(to: Emitter, out: Value, x: Value) -> str:
    return to.cast(x, out.dtype)


@TABLE.writes(
    aten.view.default,
    aten.reshape.default,
    aten._unsafe_view.default,
    aten.unsqueeze.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.flatten.using_ints,
    aten.unflatten.int,
)
def _reshape(to: Emitter, out: Value, x: Value, *_: Any) -> str:
    return to.op("Reshape", x, out.shape, allowzero=1 if 0 in out.shape else None)


@TABLE.writes(aten.expand.default)
def _expand(to: Emitter, out: Value, x: Value, size: Sequence[int], **_: Any) -> str:
    return to.op("Expand", x, out.shape)


@TABLE.writes(aten.copy.default)
def _copy(to: Emitter, out: Value, x: Value, source: Value, *_: Any) -> str:
    return to.op("Expand", to.cast(source, out.dtype), out.shape)


@TABLE.writes(aten.permute.default)
def _permute(to: Emitter, out: Value, x: Value, order: Sequence[int]) -> str:
    return to.op("Transpose", x, perm=[axis % x.rank for axis in order])


@TABLE.writes(aten.transpose.int)
def _transpose(to: Emitter, out: Value, x: Value, one: int, other: int) -> str:
    order = list(range(x.rank))
    order[one], order[other] = order[other], order[one]
    return to.op("Transpose", x, perm=order)


@TABLE.writes(aten.t.default)
def _t(to: Emitter, out: Value, x: Value) -> str:
    return to.op("Transpose", x, perm=list(reversed(range(x.rank))))


@TABLE.writes(aten.repeat.default)
def _repeat(to: Emitter, out: Value, x: Value, repeats: Sequence[int]) -> str:
    widened = to.op("Reshape", x, [*(1,) * (len(repeats) - x.rank), *x.shape])
    return to.op("Tile", widened, list(repeats))


@TABLE.writes(aten.cat.default)
def _cat(to: Emitter, out: Value, parts: Sequence[Value], axis: int = 0) -> str:
    """An empty part of rank 1 joins anything in PyTorch."""
    return to.op("Concat", *(to.cast(part, out.dtype) for part in parts if part.shape != (0,)), axis=axis)


@TABLE.writes(aten.slice.Tensor)
def _slice(
    to: Emitter, out: Value, x: Value, axis: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> str:
    return to.op("Slice", x, [start or 0], [END if end is None else end], [axis], [step])


@TABLE.writes(aten.select.int)
def _select(to: Emitter, out: Value, x: Value, axis: int, index: int) -> str:
    return to.op("Gather", x, to.scalar(index, torch.int64), axis=axis)


@TABLE.writes(aten.flip.default)
def _flip(to: Emitter, out: Value, x: Value, axes: Sequence[int]) -> str:
    count = len(axes)
    return to.op("Slice", x, [-1] * count, [-END] * count, list(axes), [-1] * count)


@TABLE.writes(aten.split_with_sizes.default, aten.split.Tensor)
def _split(to: Emitter, out: tuple[Value | None, ...], x: Value, size: int | Sequence[int], axis: int = 0) -> Result:
    length = x.shape[axis]
    sizes = [min(size, length - at) for at in range(0, length, size)] if isinstance(size, int) else list(size)
    return tuple(to.ops("Split", len(sizes), x, sizes, axis=axis))


@TABLE.writes(aten.unbind.int)
def _unbind(to: Emitter, out: tuple[Value | None, ...], x: Value, axis: int = 0) -> Result:
    return tuple(to.op("Gather", x, to.scalar(index, torch.int64), axis=axis) for index in range(len(out)))


@TABLE.writes(aten.constant_pad_nd.default)
def _pad(to: Emitter, out: Value, x: Value, widths: Sequence[int], number: float = 0) -> str:
    """PyTorch lists (before, after) from the last axis backwards."""
    before, after = list(widths[0::2])[::-1], list(widths[1::2])[::-1]
    axes = list(range(x.rank - len(before), x.rank))
    return to.op("Pad", x, [*before, *after], to.scalar(number, x.dtype), axes)
