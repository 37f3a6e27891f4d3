"""Values that are only moved, by a pattern that is known now, are moved by a table.

    as_strided, slice_scatter, unfold, index by constants, ...   ==>   gf.move(sources, table)
    index_put(zeros, constants, values, accumulate)              ==>   gf.move(values, table with several entries a row)

Exact. The table is found by letting PyTorch move the positions themselves. First of all passes, while the strides are
those of the trace. Indices that depend on the input stay as they are.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, fx

from gfcompile.graph.frozen import frozen_nodes
from gfcompile.graph.nodes import emit
from gfcompile.graph.shapes import shape_of
from gfcompile.ops import gf
from gfcompile.passes.base import Found, Pass
from gfcompile.passes.fold_frozen import add_constant, evaluate
from gfcompile.step import Step

aten = torch.ops.aten
# operator -> how many of its first arguments are moved; the others must be known
MOVES = {
    aten.as_strided.default: 1,
    aten.as_strided_scatter.default: 2,
    aten.slice_scatter.default: 2,
    aten.select_scatter.default: 2,
    aten.diagonal.default: 1,
    aten.diagonal_scatter.default: 2,
    aten.unfold.default: 1,
    aten.flip.default: 1,
    aten.roll.default: 1,
    aten.index.Tensor: 1,
    aten.index_select.default: 1,
}
PUTS = {aten.index_put.default, aten._unsafe_index_put.default}


class StaticMoves(Pass):
    """Sites are the moving operators whose pattern is frozen, on values that are not."""

    name: ClassVar[str] = "static_moves"

    def find(self, step: Step) -> Found:
        frozen = frozen_nodes(step)
        for node in step.body.graph.nodes:
            if node.target not in MOVES and node.target not in PUTS:
                continue
            moved = _moved(node)
            pattern = [arg for arg in node.all_input_nodes if arg not in moved]
            if all(arg in frozen for arg in pattern) and not all(arg in frozen for arg in moved):
                yield node

    def rewrite(self, step: Step, site: fx.Node) -> None:
        graph = step.body.graph
        if site.target in PUTS and len(site.args) > 3 and site.args[3]:
            result = _accumulate(step, site)
        else:
            sources = _moved(site)
            result = _move(step, site, sources, _positions(step, site, sources))
        site.replace_all_uses_with(result)
        graph.erase_node(site)


def _moved(node: fx.Node) -> list[fx.Node]:
    """The values, as opposed to the pattern."""
    if node.target in PUTS:
        return list(dict.fromkeys([node.args[0], node.args[2]]))
    return list(dict.fromkeys(node.args[: MOVES[node.target]]))


def _positions(step: Step, node: fx.Node, sources: list[fx.Node]) -> Tensor:
    """What the operator makes of tensors that hold, in the traced strides, 1 + the position of each element."""
    codes, start = {}, 1
    for source in sources:
        value = source.meta["val"]
        codes[source] = _codes(value, start)
        start += value.numel()
    known = dict(codes)

    def value_of(arg: fx.Node) -> Any:
        return known[arg] if arg in known else evaluate(step, arg)

    args, kwargs = fx.map_arg((node.args, node.kwargs), value_of)
    return node.target(*args, **kwargs).reshape(-1, 1)


def _codes(value: Tensor, start: int) -> Tensor:
    """Consecutive numbers in the strides of `value`; where elements share memory, as if expanded, one of theirs."""
    numbers = torch.arange(start, start + value.numel()).reshape(value.shape)
    offsets = torch.zeros(value.shape, dtype=torch.int64)
    for axis, (size, stride) in enumerate(zip(value.shape, value.stride(), strict=True)):
        offsets += (torch.arange(size) * stride).reshape([-1 if each == axis else 1 for each in range(value.dim())])
    memory = torch.zeros(int(offsets.max()) + 1 if value.numel() else 0, dtype=torch.int64)
    memory[offsets.reshape(-1)] = numbers.reshape(-1)
    return memory.as_strided(value.shape, value.stride())


def _accumulate(step: Step, site: fx.Node) -> fx.Node:
    """base + the values, each added where the indices say."""
    graph = step.body.graph
    base, indices, values = site.args[:3]
    shape = shape_of(base)
    where = [None if index is None else evaluate(step, index) for index in indices]
    targets = torch.arange(math.prod(shape)).reshape(shape)
    hit = aten.index(targets, where)
    codes = torch.arange(1, values.meta["val"].numel() + 1).reshape(shape_of(values)).expand(hit.shape)
    table = _taps(hit.reshape(-1).numpy(), codes.reshape(-1).numpy(), math.prod(shape))
    moved = _move(step, site, [values], table)
    if base.target is aten.full.default and base.args[1] == 0:
        return moved
    with graph.inserting_before(site):
        return emit(graph, aten.add.Tensor, base, moved)


def _taps(hit: np.ndarray, codes: np.ndarray, count: int) -> Tensor:
    """[count, K]: for each target the codes of the values that fall on it, zeros behind."""
    most = max(1, int(np.bincount(hit, minlength=count).max()))
    order = np.argsort(hit, kind="stable")
    rank = np.arange(len(hit)) - np.searchsorted(hit[order], hit[order])  # how many before it fall on the same target
    table = np.zeros((count, most), np.int64)
    table[hit[order], rank] = codes[order]
    return torch.from_numpy(table)


def _move(step: Step, site: fx.Node, sources: list[fx.Node], table: Tensor) -> fx.Node:
    graph = step.body.graph
    shape = list(shape_of(site))
    table = _of_one_sample(table, [shape_of(source) for source in sources], shape)
    constant = add_constant(step, f"moves.{site.name}", table.to(torch.int32))
    with graph.inserting_before(site):
        return emit(graph, gf.move.default, sources, constant, shape)


def _of_one_sample(table: Tensor, sources: list[tuple[int, ...]], shape: list[int]) -> Tensor:
    """The table of the first sample where all samples move alike and none into another, in one sample's positions."""
    samples = shape[0] if shape else 1
    if samples == 1 or any(not source or source[0] != samples for source in sources):
        return table
    sizes = [math.prod(source) // samples for source in sources]
    starts = np.cumsum([0, *[size * samples for size in sizes]])
    local_starts = np.cumsum([0, *sizes])
    per_sample = table.reshape(samples, -1, table.shape[1]).numpy()
    local = np.zeros_like(per_sample)
    for index, size in enumerate(sizes):
        inside = (per_sample > starts[index]) & (per_sample <= starts[index + 1])
        position = per_sample - 1 - starts[index]
        own = position // max(size, 1) == np.arange(samples)[:, None, None]
        if (inside & ~own).any():
            return table
        local[inside] = (position % max(size, 1) + 1 + local_starts[index])[inside]
    return torch.from_numpy(local[0]) if (local == local[:1]).all() else table
