"""Gathering, scattering and ordering along an axis."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gfcompile.frontend.onnx.graph import Node
from gfcompile.frontend.onnx.operator import Operator

_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def _gather(node: Node, x: Tensor, indices: Tensor | np.ndarray) -> Tensor:
    axis = node.get("axis", 0) % x.ndim
    if isinstance(indices, np.ndarray):
        if indices.ndim == 0:
            return x.select(axis, int(indices))
        indices = torch.from_numpy(indices.copy())
    rows = _from_front(indices, x.shape[axis])
    picked = x.index_select(axis, rows.reshape(-1))
    return picked.reshape(*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])


def _gather_elements(node: Node, x: Tensor, indices: Tensor) -> Tensor:
    axis = node.get("axis", 0)
    return x.gather(axis, _from_front(indices, x.shape[axis]))


def _gather_nd(node: Node, x: Tensor, indices: Tensor) -> Tensor:
    return x[indices.long().unbind(-1)]


def _scatter_elements(node: Node, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    axis, reduction = node.get("axis", 0), node.get("reduction", "none")
    rows = _from_front(indices, x.shape[axis])
    if reduction == "none":
        return x.scatter(axis, rows, updates)
    return x.scatter_reduce(axis, rows, updates, _REDUCTIONS[reduction])


def _scatter_nd(node: Node, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    where = indices.long().unbind(-1)
    return x.index_put(where, updates, accumulate=node.get("reduction", "none") == "add")


def _from_front(indices: Tensor, size: int) -> Tensor:
    """Negative indices count from the end, which torch's gathers do not know."""
    indices = indices.long()
    return torch.where(indices < 0, indices + size, indices)


def _cumsum(node: Node, x: Tensor, axis: np.ndarray) -> Tensor:
    dim, is_reverse = int(axis.item()), bool(node.get("reverse", 0))
    source = x.flip(dim) if is_reverse else x
    total = source.cumsum(dim)
    if node.get("exclusive", 0):
        total = total - source
    return total.flip(dim) if is_reverse else total


def _topk(node: Node, x: Tensor, k: np.ndarray | None = None) -> tuple[Tensor, Tensor]:
    count = node.get("k") if k is None else int(k.item())
    return torch.topk(x, count, node.get("axis", -1), bool(node.get("largest", 1)), bool(node.get("sorted", 1)))


def _one_hot(node: Node, indices: Tensor, depth: np.ndarray, values: np.ndarray) -> Tensor:
    count, (off, on) = int(depth.item()), torch.from_numpy(values.copy())
    hits = _from_front(indices, count)[..., None] == torch.arange(count)
    return torch.where(hits, on, off).movedim(-1, node.get("axis", -1))


OPERATORS = {
    "Gather": Operator(_gather, either=frozenset({1})),
    "GatherElements": Operator(_gather_elements),
    "GatherND": Operator(_gather_nd, refuse=lambda node: "it has batch axes" if node.get("batch_dims", 0) else None),
    "Scatter": Operator(_scatter_elements),
    "ScatterElements": Operator(_scatter_elements),
    "ScatterND": Operator(
        _scatter_nd,
        refuse=lambda node: (
            None
            if node.get("reduction", "none") in ("none", "add")
            else f"reduction '{node.get('reduction')}' is not known"
        ),
    ),
    "CumSum": Operator(_cumsum, host=frozenset({1})),
    "TopK": Operator(_topk, host=frozenset({1}), outputs=2),
    "OneHot": Operator(_one_hot, host=frozenset({1, 2})),
}
