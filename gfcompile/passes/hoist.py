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

from gfcompile.passes.base import Found, Pass
from gfcompile.passes.crossing import STATISTICS, Crossing
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
        graph, crossing = step.body.graph, Crossing(step)
        moved = _Move(graph, crossing).copy(site)
        for user in [user for user in site.users if user.target is SCALE and user in crossing.forward_work]:
            user.replace_input_with(site, moved)
            moved.append(user)
        site.replace_all_uses_with(moved)
        _erase_unread(graph, site)


class _Move:
    """Copies of forward work before the loss, each behind its last operand; what is there already is used again."""

    def __init__(self, graph: fx.Graph, crossing: Crossing) -> None:
        self.graph, self.crossing = graph, crossing
        self.done: dict[fx.Node, fx.Node] = {}

    def copy(self, node: fx.Node) -> fx.Node:
        if node not in self.crossing.forward_work:
            return node
        if node not in self.done:
            for arg in node.all_input_nodes:
                self.done[arg] = self.copy(arg)
            self.done[node] = self._known(node) or self._new(node)
        return self.done[node]

    def _known(self, node: fx.Node) -> fx.Node | None:
        """An equal node before the loss."""
        wanted = fx.map_arg((node.args, node.kwargs), self.done.__getitem__)
        for other in self.graph.find_nodes(op="call_function", target=node.target):
            if (other.args, other.kwargs) == wanted and not self.crossing.is_behind(other):
                return other
        return None

    def _new(self, node: fx.Node) -> fx.Node:
        operands = [self.done[arg] for arg in node.all_input_nodes]
        with self.graph.inserting_after(_place(operands, self.graph)):
            return self.graph.node_copy(node, self.done.__getitem__)


def _place(args: list[fx.Node], graph: fx.Graph) -> fx.Node:
    """The last node that must come before: the latest operand, or the last placeholder."""
    wanted = set(args)
    last = next(iter(graph.nodes))
    for node in graph.nodes:
        if node in wanted or node.op == "placeholder":
            last = node
    return last


def _erase_unread(graph: fx.Graph, node: fx.Node) -> None:
    """The node and the operands that only it read."""
    waiting = [node]
    while waiting:
        unread = waiting.pop()
        if unread.op == "call_function" and not unread.users:
            waiting += [arg for arg in unread.all_input_nodes if arg not in waiting]
            graph.erase_node(unread)
