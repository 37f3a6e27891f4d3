"""Reductions over axes, given as an attribute or, in newer opsets, as an input."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from gfcompile.frontend.onnx.graph import Node
from gfcompile.frontend.onnx.operator import Operator

Reduce = Callable[[Tensor, list[int], bool], Tensor]


def _reduction(reduce: Reduce) -> Operator:
    def run(node: Node, x: Tensor, axes: np.ndarray | None = None) -> Tensor:
        listed = node.get("axes", []) if axes is None else axes.tolist()
        if not listed and node.get("noop_with_empty_axes", 0):
            return x
        dims = [axis % x.ndim for axis in listed] or list(range(x.ndim))
        return reduce(x, dims, bool(node.get("keepdims", 1)))

    return Operator(run, host=frozenset({1}))


def _product(x: Tensor, axes: list[int], keepdim: bool) -> Tensor:
    for axis in sorted(axes, reverse=True):
        x = x.prod(axis, keepdim=keepdim)
    return x


def _arg(pick: Callable[..., Tensor]) -> Operator:
    def run(node: Node, x: Tensor) -> Tensor:
        axis, keepdim = node.get("axis", 0), bool(node.get("keepdims", 1))
        if not node.get("select_last_index", 0):
            return pick(x, axis, keepdim=keepdim)
        return x.shape[axis] - 1 - pick(x.flip(axis), axis, keepdim=keepdim)

    return Operator(run)


OPERATORS = {
    "ReduceMean": _reduction(lambda x, axes, keep: x.mean(axes, keepdim=keep)),
    "ReduceSum": _reduction(lambda x, axes, keep: x.sum(axes, keepdim=keep)),
    "ReduceMax": _reduction(lambda x, axes, keep: x.amax(axes, keepdim=keep)),
    "ReduceMin": _reduction(lambda x, axes, keep: x.amin(axes, keepdim=keep)),
    "ReduceProd": _reduction(_product),
    "ReduceL1": _reduction(lambda x, axes, keep: x.abs().sum(axes, keepdim=keep)),
    "ReduceL2": _reduction(lambda x, axes, keep: torch.linalg.vector_norm(x, 2, axes, keepdim=keep)),
    "ReduceSumSquare": _reduction(lambda x, axes, keep: (x * x).sum(axes, keepdim=keep)),
    "ReduceLogSum": _reduction(lambda x, axes, keep: x.sum(axes, keepdim=keep).log()),
    "ReduceLogSumExp": _reduction(lambda x, axes, keep: x.logsumexp(axes, keepdim=keep)),
    "ArgMax": _arg(torch.argmax),
    "ArgMin": _arg(torch.argmin),
}
