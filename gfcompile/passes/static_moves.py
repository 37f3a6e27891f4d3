"""Values that are only moved, by a pattern that is known now, are moved by a table.

    as_strided, slice_scatter, unfold, index by constants, ...   ==>   gf.move(sources, table)
    index_put(zeros, constants, values, accumulate)              ==>   gf.move(values, table with several entries a row)

Exact. The table is found by letting PyTorch move the positions themselves. First of all passes, while the strides are
those of the trace. Indices that depend on the input stay as they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, fx

from gfcompile.graph.frozen import frozen_nodes
from gfcompile.graph.inputs import Inputs
from gfcompile.graph.nodes import emit
from gfcompile.graph.shapes import shape_of
from gfcompile.ops import gf
from gfcompile.passes.base import Found, Pass, Site
from gfcompile.passes.fold_frozen import add_constant, evaluate
from gfcompile.step import Step

aten = torch.ops.aten
# operator -> its arguments that are moved; the others must be known
MOVES = {
    aten.as_strided.default: (0,),
    aten.as_strided_scatter.default: (0, 1),
    aten.slice_scatter.default: (0, 1),
    aten.select_scatter.default: (0, 1),
    aten.diagonal.default: (0,),
    aten.diagonal_scatter.default: (0, 1),
    aten.unfold.default: (0,),
    aten.flip.default: (0,),
    aten.roll.default: (0,),
    aten.index.Tensor: (0,),
    aten.index_select.default: (0,),
    aten.index_put.default: (0, 2),
    aten._unsafe_index_put.default: (0, 2),
}
PUTS = {aten.index_put.default, aten._unsafe_index_put.default}


@dataclass(frozen=True)
class Move(Site):
    """A moving operator: which of its arguments are values, as opposed to the pattern, and whether it adds them up."""

    moved: tuple[int, ...]
    accumulates: bool
    inputs: Inputs = field(repr=False)

    @property
    def sources(self) -> list[fx.Node]:
        """The values; an earlier site may have replaced one, so they are read when asked for."""
        return _values(self.node, self.moved)


@dataclass(frozen=True)
class StaticMoves(Pass[Move]):
    """Sites are the moving operators whose pattern is frozen, on values that are not."""

    name: ClassVar[str] = "static_moves"

    def find(self, step: Step) -> Found[Move]:
        frozen, inputs = frozen_nodes(step), Inputs(step)
        for node in step.body.graph.nodes:
            if node.target not in MOVES:
                continue
            moved = _values(node, MOVES[node.target])
            pattern = [arg for arg in node.all_input_nodes if arg not in moved]
            if all(arg in frozen for arg in pattern) and not all(arg in frozen for arg in moved):
                accumulates = node.target in PUTS and len(node.args) > 3 and bool(node.args[3])
                yield Move(node, MOVES[node.target], accumulates, inputs)

    def rewrite(self, step: Step, site: Move) -> None:
        if site.accumulates:
            result = _accumulate(step, site)
        else:
            result = _move(step, site, site.sources, _positions(step, site))
        site.node.replace_all_uses_with(result)
        step.body.graph.erase_node(site.node)


def _values(node: fx.Node, moved: tuple[int, ...]) -> list[fx.Node]:
    return list(dict.fromkeys(node.args[at] for at in moved))


def _positions(step: Step, site: Move) -> Tensor:
    """What the operator makes of tensors that hold, in the traced strides, 1 + the position of each element."""
    codes, start = {}, 1
    for source in site.sources:
        value = source.meta["val"]
        codes[source] = _codes(value, start)
        start += value.numel()

    def value_of(arg: fx.Node) -> Any:
        return codes[arg] if arg in codes else evaluate(step, arg, site.inputs)

    args, kwargs = fx.map_arg((site.node.args, site.node.kwargs), value_of)
    return site.node.target(*args, **kwargs).reshape(-1, 1)


def _codes(value: Tensor, start: int) -> Tensor:
    """Consecutive numbers in the strides of `value`; where elements share memory, as if expanded, one of theirs."""
    numbers = torch.arange(start, start + value.numel()).reshape(value.shape)
    offsets = torch.zeros(value.shape, dtype=torch.int64)
    for axis, (size, stride) in enumerate(zip(value.shape, value.stride(), strict=True)):
        offsets += (torch.arange(size) * stride).reshape([-1 if each == axis else 1 for each in range(value.dim())])
    memory = torch.zeros(int(offsets.max()) + 1 if value.numel() else 0, dtype=torch.int64)
    memory[offsets.reshape(-1)] = numbers.reshape(-1)
    return memory.as_strided(value.shape, value.stride())


def _accumulate(step: Step, site: Move) -> fx.Node:
    """base + the values, each added where the indices say."""
    graph = step.body.graph
    base, indices, values = site.node.args[:3]
    shape = shape_of(base)
    where = [None if index is None else evaluate(step, index, site.inputs) for index in indices]
    targets = torch.arange(math.prod(shape)).reshape(shape)
    hit = aten.index(targets, where)
    codes = torch.arange(1, values.meta["val"].numel() + 1).reshape(shape_of(values)).expand(hit.shape)
    table = _taps(hit.reshape(-1).numpy(), codes.reshape(-1).numpy(), math.prod(shape))
    moved = _move(step, site, [values], table)
    if base.target is aten.full.default and base.args[1] == 0:
        return moved
    with graph.inserting_before(site.node):
        return emit(graph, aten.add.Tensor, base, moved)


def _taps(hit: np.ndarray, codes: np.ndarray, count: int) -> Tensor:
    """[count, K]: for each target the codes of the values that fall on it, zeros after them."""
    most = max(1, int(np.bincount(hit, minlength=count).max()))
    order = np.argsort(hit, kind="stable")
    rank = np.arange(len(hit)) - np.searchsorted(hit[order], hit[order])  # how many before it fall on the same target
    table = np.zeros((count, most), np.int64)
    table[hit[order], rank] = codes[order]
    return torch.from_numpy(table)


def _move(step: Step, site: Move, sources: list[fx.Node], table: Tensor) -> fx.Node:
    graph = step.body.graph
    shape = list(shape_of(site.node))
    table = _of_one_sample(table, [shape_of(source) for source in sources], shape)
    constant = add_constant(step, f"moves.{site.node.name}", table.to(torch.int32), site.inputs)
    with graph.inserting_before(site.node):
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
