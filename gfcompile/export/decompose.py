"""ATen operators without a translation of their own, as PyTorch spells them in core ATen.

Mostly backward operators and normalisations; what ONNX has an operator for stands in `aten/` instead.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import fx
from torch._decomp import core_aten_decompositions, get_decompositions
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_unflatten

from gfcompile.export.aten import TABLE
from gfcompile.export.emitter import Value

aten = torch.ops.aten
BEYOND_CORE = [
    aten._native_batch_norm_legit_functional.default,
    aten._native_batch_norm_legit.no_stats,
    aten.native_group_norm.default,
]


def decompose(target: Any, args: Any, kwargs: Any) -> tuple[fx.GraphModule, list[Value]] | None:
    """The operator as a graph of others, and the tensors that are its placeholders; None if PyTorch has none."""
    if target not in _decompositions():
        return None
    leaves, structure = tree_flatten((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Value)]

    def call(*given: torch.Tensor) -> Any:
        rest = iter(given)
        filled = [next(rest) if isinstance(leaf, Value) else leaf for leaf in leaves]
        again, named = tree_unflatten(filled, structure)
        return target(*again, **named)

    stand_ins = [torch.empty(value.shape, dtype=value.dtype) for value in tensors]
    traced = make_fx(call, decomposition_table=_decompositions(), tracing_mode="fake")(*stand_ins)
    return traced, tensors


@cache
def _decompositions() -> dict[Any, Any]:
    found = {**core_aten_decompositions(), **get_decompositions(BEYOND_CORE)}
    return {target: rule for target, rule in found.items() if target not in TABLE}
