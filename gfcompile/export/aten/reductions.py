"""Sums, means and the like over axes, softmax, running sums."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from gfcompile.export.emitter import Emitter, NoTranslation, Value
from gfcompile.export.table import Result, Table, Translation

aten = torch.ops.aten
TABLE = Table()
Axes = int | Sequence[int] | None

REDUCTIONS = {
    aten.sum.dim_IntList: "ReduceSum",
    aten.sum.default: "ReduceSum",
    aten.mean.dim: "ReduceMean",
    aten.mean.default: "ReduceMean",
    aten.amax.default: "ReduceMax",
    aten.amin.default: "ReduceMin",
    aten.max.default: "ReduceMax",
    aten.min.default: "ReduceMin",
    aten.prod.dim_int: "ReduceProd",
    aten.prod.default: "ReduceProd",
    aten.logsumexp.default: "ReduceLogSumExp",
}
NORMS = {1: "ReduceL1", 2: "ReduceL2"}


def _reduction(kind: str) -> Translation:
    def translate(to: Emitter, out: Value, x: Value, axes: Axes = None, keepdim: bool = False) -> str:
        return reduced(to, kind, Value(to.cast(x, out.dtype), x.shape, out.dtype), axes, keepdim)

    return translate


def axes_of(x: Value, axes: Axes) -> list[int]:
    """As PyTorch reads them: None and [] are all of them."""
    listed = [axes] if isinstance(axes, int) else list(axes or range(x.rank))
    return sorted(axis % max(x.rank, 1) for axis in listed)


def reduced(to: Emitter, kind: str, x: Value, axes: Axes, keepdim: bool) -> str:
    """An ONNX reduction; a scalar is its own."""
    if x.rank == 0:
        return x.name
    return to.op(kind, x, axes_of(x, axes), keepdims=int(keepdim))


TABLE.update({target: _reduction(kind) for target, kind in REDUCTIONS.items()})


@TABLE.writes(aten.any.dim, aten.any.dims, aten.any.default)
def _any(to: Emitter, out: Value, x: Value, axes: Axes = None, keepdim: bool = False) -> str:
    return _of_bits(to, "ReduceMax", x, axes, keepdim)


@TABLE.writes(aten.all.dim, aten.all.default)
def _all(to: Emitter, out: Value, x: Value, axes: Axes = None, keepdim: bool = False) -> str:
    return _of_bits(to, "ReduceMin", x, axes, keepdim)


def _of_bits(to: Emitter, kind: str, x: Value, axes: Axes, keepdim: bool) -> str:
    truth = to.cast(x, torch.bool)
    bits = to.cast(Value(truth, x.shape, torch.bool), torch.int32)
    found = reduced(to, kind, Value(bits, x.shape, torch.int32), axes, keepdim)
    return to.cast(Value(found, (), torch.int32), torch.bool)


@TABLE.writes(aten.linalg_vector_norm.default)
def _norm(to: Emitter, out: Value, x: Value, order: float = 2, axes: Axes = None, keepdim: bool = False) -> str:
    if order in NORMS:
        return reduced(to, NORMS[int(order)], x, axes, keepdim)
    if order == math.inf:
        return reduced(to, "ReduceMax", Value(to.op("Abs", x), x.shape, x.dtype), axes, keepdim)
    raise NoTranslation(f"order {order}")


@TABLE.writes(aten.var.correction)
def _var(
    to: Emitter, out: Value, x: Value, axes: Axes = None, *, correction: float | None = None, keepdim: bool = False
) -> str:
    return _moments(to, x, axes, correction, keepdim)[0]


@TABLE.writes(aten.var_mean.correction)
def _var_mean(
    to: Emitter, out: Value, x: Value, axes: Axes = None, *, correction: float | None = None, keepdim: bool = False
) -> Result:
    return _moments(to, x, axes, correction, keepdim)


def _moments(to: Emitter, x: Value, axes: Axes, correction: float | None, keepdim: bool) -> tuple[str, str]:
    kept = reduced(to, "ReduceMean", x, axes, keepdim=True)
    centred = to.op("Sub", x, kept)
    square = Value(to.op("Mul", centred, centred), x.shape, x.dtype)
    count = math.prod(x.shape[axis] for axis in axes_of(x, axes))
    divisor = to.scalar(max(count - (1 if correction is None else correction), 0), x.dtype)
    var = to.op("Div", reduced(to, "ReduceSum", square, axes, keepdim), divisor)
    return var, kept if keepdim else reduced(to, "ReduceMean", x, axes, keepdim=False)


@TABLE.writes(aten.argmax.default)
def _argmax(to: Emitter, out: Value, x: Value, axis: int | None = None, keepdim: bool = False) -> str:
    if axis is None:
        return to.op("ArgMax", to.op("Reshape", x, [-1]), axis=0, keepdims=0)
    return to.op("ArgMax", x, axis=axis, keepdims=int(keepdim))


@TABLE.writes(aten.max.dim)
def _max_dim(to: Emitter, out: tuple[Value | None, ...], x: Value, axis: int, keepdim: bool = False) -> Result:
    return reduced(to, "ReduceMax", x, axis, keepdim), to.op("ArgMax", x, axis=axis, keepdims=int(keepdim))


@TABLE.writes(aten.min.dim)
def _min_dim(to: Emitter, out: tuple[Value | None, ...], x: Value, axis: int, keepdim: bool = False) -> Result:
    return reduced(to, "ReduceMin", x, axis, keepdim), to.op("ArgMin", x, axis=axis, keepdims=int(keepdim))


@TABLE.writes(aten._softmax.default)
def _softmax(to: Emitter, out: Value, x: Value, axis: int, half_to_float: bool) -> str:
    return to.op("Softmax", x, axis=axis)


@TABLE.writes(aten._log_softmax.default)
def _log_softmax(to: Emitter, out: Value, x: Value, axis: int, half_to_float: bool) -> str:
    return to.op("LogSoftmax", x, axis=axis)


@TABLE.writes(aten.cumsum.default)
def _cumsum(to: Emitter, out: Value, x: Value, axis: int) -> str:
    return to.op("CumSum", to.cast(x, out.dtype), to.scalar(axis, torch.int64))
