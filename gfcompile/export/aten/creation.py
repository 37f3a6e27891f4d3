"""Tensors out of nothing: of one number, or counting. What PyTorch leaves uninitialised is zero here."""

from __future__ import annotations

from typing import Any

import torch

from gfcompile.export.emitter import Emitter, Value
from gfcompile.export.table import Table

aten = torch.ops.aten
TABLE = Table()


@TABLE.writes(aten.full.default, aten.full_like.default)
def _full(to: Emitter, out: Value, like: Any, number: float) -> str:
    return to.filled(out.shape, number, out.dtype)


@TABLE.writes(aten.new_full.default)
def _new_full(to: Emitter, out: Value, like: Value, size: Any, number: float) -> str:
    return to.filled(out.shape, number, out.dtype)


@TABLE.writes(aten.scalar_tensor.default)
def _scalar_tensor(to: Emitter, out: Value, number: float) -> str:
    return to.op("Identity", to.scalar(number, out.dtype))


@TABLE.writes(
    aten.zeros.default,
    aten.zeros_like.default,
    aten.new_zeros.default,
    aten.empty.memory_format,
    aten.empty_like.default,
    aten.empty_permuted.default,
    aten.empty_strided.default,
    aten.new_empty.default,
    aten.new_empty_strided.default,
)
def _zeros(to: Emitter, out: Value, *_: Any) -> str:
    return to.filled(out.shape, 0, out.dtype)


@TABLE.writes(aten.ones.default, aten.ones_like.default, aten.new_ones.default)
def _ones(to: Emitter, out: Value, *_: Any) -> str:
    return to.filled(out.shape, 1, out.dtype)


@TABLE.writes(aten.arange.default, aten.arange.start, aten.arange.start_step)
def _arange(to: Emitter, out: Value, *bounds: float) -> str:
    start, step = bounds[0] if len(bounds) > 1 else 0, bounds[2] if len(bounds) > 2 else 1
    end = start + step * out.shape[0]
    return to.op("Range", *(to.scalar(limit, out.dtype) for limit in (start, end, step)))


@TABLE.writes(aten.eye.default, aten.eye.m)
def _eye(to: Emitter, out: Value, *_: int) -> str:
    return to.op("EyeLike", to.filled(out.shape, 0, out.dtype))
