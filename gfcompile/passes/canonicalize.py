"""Write the traced graph in fewer words.

    alias(x), clone(x), detach(x)   ==>  x
    copy(y, x)                      ==>  x, in y's shape and type
    scatter, index_put              ==>  gf.put on rows, where the indices are not known (static_moves has had the rest)
    count + 0.5, mask == mask       ==>  the same, of operands cast to the type that PyTorch computes in
    batch norm, running statistics  ==>  x*scale + shift, scale and shift from the statistics
    batch norm, batch statistics    ==>  mean and variance, the same, and the statistics' update

Exact up to float rounding. Refuses nothing: what it does not know it leaves.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import fx

from gfcompile.errors import UserError
from gfcompile.graph.nodes import emit
from gfcompile.graph.shapes import shape_of
from gfcompile.ops import gf
from gfcompile.passes.base import Found, Pass, Site
from gfcompile.passes.promotion import operand_type
from gfcompile.step import Step

aten = torch.ops.aten
IDENTITIES = {aten.alias.default, aten.clone.default, aten.detach.default, aten.lift_fresh_copy.default}
SCATTERS = {aten.scatter.src: False, aten.scatter_add.default: True}  # whether they add
PUTS = {aten.index_put.default, aten._unsafe_index_put.default}
COPIES = {aten.copy.default}
BATCH_NORM_EVAL = aten._native_batch_norm_legit_no_training.default
BATCH_NORM_TRAIN = aten._native_batch_norm_legit_functional.default
BATCH_NORMS = {BATCH_NORM_EVAL, BATCH_NORM_TRAIN}
SITES = SCATTERS.keys() | PUTS | IDENTITIES | COPIES | BATCH_NORMS


@dataclass(frozen=True)
class Spelling(Site):
    """A call to spell otherwise; one of mixed types with the type that its operands are cast to."""

    dtype: torch.dtype | None


@dataclass(frozen=True)
class Canonicalize(Pass[Spelling]):
    """Remove identities and spell batch norm out."""

    name: ClassVar[str] = "canonicalize"

    def find(self, step: Step) -> Found[Spelling]:
        for node in step.body.graph.nodes:
            if node.target in SCATTERS and not _is_whole(node):
                continue
            is_copy = node.target is aten._to_copy.default and _is_same_type(node)
            dtype = operand_type(node)
            if node.target in SITES or is_copy or dtype is not None:
                yield Spelling(node, dtype)

    def rewrite(self, step: Step, site: Spelling) -> None:
        graph, node = step.body.graph, site.node
        with graph.inserting_before(node):
            if site.dtype is not None:
                dtype = site.dtype
                casts = {arg: emit(graph, aten._to_copy.default, arg, dtype=dtype) for arg in node.all_input_nodes}
                node.args = fx.map_arg(node.args, casts.__getitem__)
                return
            if node.target in BATCH_NORMS:
                results = (_eval_batch_norm if node.target is BATCH_NORM_EVAL else _train_batch_norm)(graph, *node.args)
                _replace_results(node, results)
            else:
                node.replace_all_uses_with(_spelt(graph, node))
        graph.erase_node(node)


def _spelt(graph: fx.Graph, node: fx.Node) -> fx.Node:
    """The same value in other words."""
    if node.target in SCATTERS:
        return _scatter(graph, node)
    if node.target in PUTS:
        return _index_put(graph, node)
    if node.target in COPIES:
        return _copied(graph, *node.args[:2])
    same: fx.Node = node.args[0]
    return same


def _replace_results(node: fx.Node, results: tuple[fx.Node | None, ...]) -> None:
    """Those of a node with several; one that nobody reads may be None."""
    for user in list(node.users):
        index: int = user.args[1]
        if user.target is operator.getitem and (results[index] is not None or not user.users):
            if user.users:
                user.replace_all_uses_with(results[index])
            node.graph.erase_node(user)


def _is_whole(node: fx.Node) -> bool:
    """Whether the indices of a scatter cover every row."""
    base, axis, index = node.args[:3]
    rows = [
        [size for at, size in enumerate(shape_of(value)) if at != axis % len(shape_of(base))] for value in (base, index)
    ]
    return rows[0] == rows[1]


def _scatter(graph: fx.Graph, site: fx.Node) -> fx.Node:
    """Along one axis: that axis last, the others as rows."""
    base, axis, index, source = site.args[:4]
    rank = len(shape_of(base))
    order = [at for at in range(rank) if at != axis % rank] + [axis % rank]

    def rows(value: fx.Node) -> fx.Node:
        moved = emit(graph, aten.permute.default, value, order)
        return emit(graph, aten.reshape.default, moved, [-1, shape_of(moved)[-1]])

    result = emit(graph, gf.put.default, rows(base), rows(index), rows(source), SCATTERS[site.target])
    shaped = emit(graph, aten.reshape.default, result, [shape_of(base)[at] for at in order])
    return emit(graph, aten.permute.default, shaped, [order.index(at) for at in range(rank)])


def _index_put(graph: fx.Graph, site: fx.Node) -> fx.Node:
    """Positions are indexed as the values would be; these say where each value goes. By a mask: one value for all."""
    base, indices, values, *rest = site.args
    shape = list(shape_of(base))
    if any(index is not None and index.meta["val"].dtype == torch.bool for index in indices):
        (mask, *others), is_sum = indices, bool(rest and rest[0])
        if mask is None or others or is_sum or values.meta["val"].numel() != 1:
            raise UserError("model: it writes several values where a mask says; use torch.where, or one value for all")
        columns = [1] * (len(shape) - len(shape_of(mask)))
        wide = emit(graph, aten.reshape.default, mask, [*shape_of(mask), *columns]) if columns else mask
        return emit(graph, aten.where.self, wide, emit(graph, aten.reshape.default, values, [1] * len(shape)), base)
    count = math.prod(shape)
    positions = emit(graph, aten.arange.start_step, 0, count, 1)
    places = emit(graph, aten.index.Tensor, emit(graph, aten.reshape.default, positions, shape), indices)
    spread = emit(graph, aten.expand.default, values, list(shape_of(places)))
    operands = [emit(graph, aten.reshape.default, value, [1, -1]) for value in (base, places, spread)]
    result = emit(graph, gf.put.default, *operands, bool(rest and rest[0]))
    return emit(graph, aten.reshape.default, result, shape)


def _copied(graph: fx.Graph, target: fx.Node, source: fx.Node) -> fx.Node:
    """What stands in `target` once `source` was copied into it."""
    value = target.meta["val"]
    if shape_of(source) != shape_of(target):
        source = emit(graph, aten.expand.default, source, list(shape_of(target)))
    if source.meta["val"].dtype != value.dtype:
        source = emit(graph, aten._to_copy.default, source, dtype=value.dtype)
    return source


def _is_same_type(node: fx.Node) -> bool:
    return bool(node.meta["val"].dtype == node.args[0].meta["val"].dtype)


def _per_channel(graph: fx.Graph, value: fx.Node, rank: int) -> fx.Node:
    return emit(graph, aten.reshape.default, value, [1, -1] + [1] * (rank - 2))


def _affine(graph: fx.Graph, x: fx.Node, mean: fx.Node, rstd: fx.Node, weight: Any, bias: Any) -> fx.Node:
    """x*scale + shift with scale = weight*rstd, shift = bias - mean*scale, as an inference kernel wants it."""
    rank = len(shape_of(x))
    scale = rstd if weight is None else emit(graph, aten.mul.Tensor, weight, rstd)
    offset = emit(graph, aten.mul.Tensor, mean, scale)
    shift = emit(graph, aten.neg.default, offset) if bias is None else emit(graph, aten.sub.Tensor, bias, offset)
    scaled = emit(graph, aten.mul.Tensor, x, _per_channel(graph, scale, rank))
    return emit(graph, aten.add.Tensor, scaled, _per_channel(graph, shift, rank))


def _eval_batch_norm(
    graph: fx.Graph, x: fx.Node, weight: Any, bias: Any, mean: fx.Node, var: fx.Node, _momentum: float, eps: float
) -> tuple[fx.Node | None, ...]:
    rstd = emit(graph, aten.rsqrt.default, emit(graph, aten.add.Scalar, var, eps))
    return (_affine(graph, x, mean, rstd, weight, bias), None, None)


def _train_batch_norm(
    graph: fx.Graph,
    x: fx.Node,
    weight: Any,
    bias: Any,
    running_mean: fx.Node,
    running_var: fx.Node,
    _training: bool,
    momentum: float,
    eps: float,
) -> tuple[fx.Node, ...]:
    shape = shape_of(x)
    axes = [axis for axis in range(len(shape)) if axis != 1]
    count = 1
    for axis in axes:
        count *= shape[axis]
    mean_kept = emit(graph, aten.mean.dim, x, axes, True)
    centred = emit(graph, aten.sub.Tensor, x, mean_kept)
    square = emit(graph, aten.mul.Tensor, centred, centred)
    var_kept = emit(graph, aten.mean.dim, square, axes, True)
    mean = emit(graph, aten.reshape.default, mean_kept, [-1])
    var = emit(graph, aten.reshape.default, var_kept, [-1])
    rstd = emit(graph, aten.rsqrt.default, emit(graph, aten.add.Scalar, var, eps))
    y = emit(graph, aten.mul.Tensor, centred, _per_channel(graph, rstd, len(shape)))
    if weight is not None:
        y = emit(graph, aten.mul.Tensor, y, _per_channel(graph, weight, len(shape)))
    if bias is not None:
        y = emit(graph, aten.add.Tensor, y, _per_channel(graph, bias, len(shape)))
    unbiased = emit(graph, aten.mul.Scalar, var, count / max(count - 1, 1))

    def follow(running: fx.Node, batch: fx.Node) -> fx.Node:
        kept = emit(graph, aten.mul.Scalar, running, 1 - momentum)
        return emit(graph, aten.add.Tensor, kept, emit(graph, aten.mul.Scalar, batch, momentum))

    return y, mean, rstd, follow(running_mean, mean), follow(running_var, unbiased)
