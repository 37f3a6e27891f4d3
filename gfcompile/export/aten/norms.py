"""Normalisations that ONNX has operators for; the others are written as torch decomposes them (`decompose.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gfcompile.export.emitter import Emitter, Value
from gfcompile.export.table import Result, Table

aten = torch.ops.aten
TABLE = Table()
Optional = Value | None


@TABLE.writes(aten._native_batch_norm_legit_no_training.default)
def _batch_norm(
    to: Emitter,
    out: tuple[Optional, ...],
    x: Value,
    weight: Optional,
    bias: Optional,
    mean: Value,
    var: Value,
    momentum: float,
    eps: float,
) -> Result:
    """The second and third result are empty: nothing of the batch is kept."""
    scale = weight or to.filled(mean.shape, 1, x.dtype)
    shift = bias or to.filled(mean.shape, 0, x.dtype)
    y = to.op("BatchNormalization", x, scale, shift, mean, var, epsilon=float(eps))
    return (y, *(None if kept is None else to.filled(kept.shape, 0, kept.dtype) for kept in out[1:]))


@TABLE.writes(aten._weight_norm_interface_backward.default)
def _weight_norm_backward(
    to: Emitter, out: tuple[Optional, ...], gw: Value, v: Value, g: Value, norms: Value, axis: int
) -> Result:
    """w = g * v/|v|, so gg = sum(gw*v) / |v| and gv = g/|v| * (gw - v * sum(gw*v)/|v|^2)."""
    others = [other for other in range(v.rank) if other != axis % v.rank]
    projected = to.op("ReduceSum", to.op("Mul", gw, v), others)
    gg = to.op("Div", projected, norms)
    along = to.op("Mul", v, to.op("Div", gg, norms))
    return to.op("Mul", to.op("Div", g, norms), to.op("Sub", gw, along)), gg


@TABLE.writes(aten.native_layer_norm.default)
def _layer_norm(
    to: Emitter,
    out: tuple[Optional, ...],
    x: Value,
    normalized: Sequence[int],
    weight: Optional,
    bias: Optional,
    eps: float,
) -> Result:
    scale = weight or to.filled(normalized, 1, x.dtype)
    read = max(index for index, result in enumerate(out) if result is not None) + 1
    settings: dict[str, Any] = {"axis": -len(normalized), "epsilon": float(eps)}
    results = to.ops("LayerNormalization", read, x, scale, bias, **settings)
    return (*results, *[None] * (len(out) - read))
