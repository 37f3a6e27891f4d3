"""Matrix products."""

from __future__ import annotations

import torch

from gfcompile.export.emitter import Emitter, Value
from gfcompile.export.table import Table

aten = torch.ops.aten
TABLE = Table()


@TABLE.writes(aten.mm.default, aten.bmm.default, aten.matmul.default, aten.mv.default, aten.dot.default)
def _matmul(to: Emitter, out: Value, a: Value, b: Value) -> str:
    return to.op("MatMul", a, b)


@TABLE.writes(aten.addmm.default)
def _addmm(to: Emitter, out: Value, bias: Value, a: Value, b: Value, *, beta: float = 1, alpha: float = 1) -> str:
    return to.op("Gemm", a, b, bias, alpha=float(alpha), beta=float(beta))


@TABLE.writes(aten.linear.default)
def _linear(to: Emitter, out: Value, x: Value, weight: Value, bias: Value | None = None) -> str:
    product = to.op("MatMul", x, to.op("Transpose", weight, perm=[1, 0]))
    return product if bias is None else to.op("Add", product, bias)
