"""Compute in the forward pass what the backward needs of a tensor, so that the tensor itself dies there.

    x = relu(...) ; ... ; loss ; gf.patch_sum(x) ; gf.mask_count([x <= 0])
      ==>  x = relu(...) ; gf.patch_sum(x) ; gf.mask_count([x <= 0]) ; ... ; loss

Exact: only the order changes. A statistic (patch sum, mask count, packed mask) moves with the forward work it is made
of to right behind the last value that it reads; forward work that gradients read too is left behind as well. A
statistic whose sources are all kept for other reasons stays where it is: it costs no byte there.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import fx

from gfcompile.graph.crossing import STATISTICS, Crossing
from gfcompile.passes.base import Found, Pass
from gfcompile.step import Step

SCALE = torch.ops.aten.mul.Scalar


class Hoist(Pass):
    """Sites are the statistics behind the loss."""

    name: ClassVar[str] = "hoist"

    def find(self, step: Step) -> Found:
        crossing = Crossing(step)
        for node in crossing.forward_work:
            if node.target in STATISTICS:
                sources = crossing.sources(node)
                if not sources or not all(crossing.is_kept(source) for source in sources):
                    yield node

    def rewrite(self, step: Step, site: fx.Node) -> None:
        _hoist(step, Crossing(step), site)

    def rewrite_all(self, step: Step, sites: list[fx.Node]) -> None:
        crossing = Crossing(step)
        for site in sites:
            _hoist(step, crossing, site)


def _hoist(step: Step, crossing: Crossing, site: fx.Node) -> None:
    """Move one statistic; `crossing` is kept up to date."""
    graph = step.body.graph
    moved = _Move(step, crossing).copy(site)
    for user in [user for user in site.users if user.target is SCALE and user in crossing.forward_work]:
        user.replace_input_with(site, moved)
        moved.append(user)
        del crossing.forward_work[user]
    site.replace_all_uses_with(moved)
    _erase_unread(graph, site)


class _Move:
    """Copies of forward work before the loss, each behind its last operand; what is there already is used again."""

    def __init__(self, step: Step, crossing: Crossing) -> None:
        self.step, self.graph, self.crossing = step, step.body.graph, crossing
        self.done: dict[fx.Node, fx.Node] = {}

    def copy(self, node: fx.Node) -> fx.Node:
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
        equal = [each for each in others if each.target is node.target and (each.args, each.kwargs) == wanted]
        return min((each for each in equal if not self.crossing.is_behind(each)), default=None)

    def _new(self, node: fx.Node) -> fx.Node:
        operands = [self.done[arg] for arg in node.all_input_nodes]
        last = max([*operands, self.step.placeholders()[-1]])  # in the graph's order
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
