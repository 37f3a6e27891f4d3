"""Compute in the forward pass what the backward needs of a tensor, so that the tensor itself dies there.

    x = relu(...) ; ... ; loss ; gf.patch_sum(x) ; gf.mask_count([x <= 0])
      ==>  x = relu(...) ; gf.patch_sum(x) ; gf.mask_count([x <= 0]) ; ... ; loss

Exact: only the order changes. A statistic (patch sum, mask count, packed mask) moves with the forward work it is made
of to right after the last value that it reads; forward work that gradients read too is left behind as well. A
statistic whose sources are all kept for other reasons stays where it is: it costs no byte there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import fx

from gfcompile.graph.crossing import STATISTICS, Crossing
from gfcompile.passes.base import Found, Pass, Site
from gfcompile.step import Step

SCALE = torch.ops.aten.mul.Scalar


@dataclass(frozen=True)
class Statistic(Site):
    """A statistic to be moved, and the mover of them all."""

    mover: Mover = field(repr=False)


@dataclass(frozen=True)
class Hoist(Pass[Statistic]):
    """Sites are the statistics after the loss."""

    name: ClassVar[str] = "hoist"

    def find(self, step: Step) -> Found[Statistic]:
        crossing = Crossing(step)
        mover, settled = Mover(step, crossing), _settled(crossing)
        for node in crossing.forward_work:
            if node.target in STATISTICS and node not in settled:
                yield Statistic(node, mover)

    def rewrite(self, step: Step, site: Statistic) -> None:
        site.mover.move(site.node)


def _settled(crossing: Crossing) -> set[fx.Node]:
    """Forward work whose sources, one at least, are all kept."""
    kept = crossing.kept()
    has_source: set[fx.Node] = set()
    open_source: set[fx.Node] = set()  # what has one that is not kept
    for node in crossing.forward_work:
        for arg in node.all_input_nodes:
            if arg in crossing.forward_work:
                is_source, is_open = arg in has_source, arg in open_source
            else:
                is_source, is_open = arg.op == "call_function", arg.op == "call_function" and arg not in kept
            if is_source:
                has_source.add(node)
            if is_open:
                open_source.add(node)
    return has_source - open_source


class Mover:
    """Copies forward work to before the loss, each after its last operand; what is there already is used again.

    One for all sites: work that several statistics are made of is looked at once, and `crossing` is kept up to date.
    """

    def __init__(self, step: Step, crossing: Crossing) -> None:
        self.graph, self.crossing = step.body.graph, crossing
        self.last_input = step.placeholders()[-1]
        self.done: dict[fx.Node, fx.Node] = {}

    def move(self, statistic: fx.Node) -> None:
        """Move it and the scaling of it; erase what nobody reads any more."""
        moved = self._copy(statistic)
        for user in [user for user in statistic.users if user.target is SCALE and user in self.crossing.forward_work]:
            user.replace_input_with(statistic, moved)
            moved.append(user)
            del self.crossing.forward_work[user]
            self.done[user] = user
        statistic.replace_all_uses_with(moved)
        _erase_unread(self.graph, statistic)

    def _copy(self, node: fx.Node) -> fx.Node:
        waiting = [node]
        while waiting:
            top = waiting[-1]
            is_work = top in self.crossing.forward_work
            missing = next((arg for arg in top.all_input_nodes if arg not in self.done), None) if is_work else None
            if missing is not None:
                waiting.append(missing)  # operands first
                continue
            self.done[top] = (self._known(top) or self._new(top)) if is_work else top
            waiting.pop()
        return self.done[node]

    def _known(self, node: fx.Node) -> fx.Node | None:
        """An equal node before the loss."""
        wanted = fx.map_arg((node.args, node.kwargs), self.done.__getitem__)
        operands = node.all_input_nodes
        others = self.done[operands[0]].users if operands else self.graph.find_nodes(op=node.op, target=node.target)
        words = repr(wanted)  # for Python, 1 is 1.0 and True, and makes a tensor of another type
        equal = [each for each in others if each.target is node.target and repr((each.args, each.kwargs)) == words]
        return min((each for each in equal if not self.crossing.is_behind(each)), default=None)

    def _new(self, node: fx.Node) -> fx.Node:
        operands = [self.done[arg] for arg in node.all_input_nodes]
        last = max([*operands, self.last_input])  # in the graph's order
        with self.graph.inserting_after(last):
            return self.graph.node_copy(node, self.done.__getitem__)


def _erase_unread(graph: fx.Graph, node: fx.Node) -> None:
    """The node and the operands that only it read."""
    waiting = [node]
    while waiting:
        unread = waiting.pop()
        if unread.op == "call_function" and not unread.users:
            waiting += [arg for arg in unread.all_input_nodes if arg not in waiting]
            graph.erase_node(unread)
