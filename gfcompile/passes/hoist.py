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
        crossing = Crossing(step)
        moved = self._moved(step.body.graph, crossing, site, {})
        for user in [user for user in site.users if user.target is SCALE and user in crossing.forward_work]:
            user.replace_input_with(site, moved)
            moved.append(user)
        site.replace_all_uses_with(moved)
        _erase_unread(step.body.graph, site)

    def _moved(self, graph: fx.Graph, crossing: Crossing, node: fx.Node, done: dict[fx.Node, fx.Node]) -> fx.Node:
        """A copy of forward work before the loss, operands first."""
        if node not in crossing.forward_work:
            return node
        if node not in done:
            for arg in node.all_input_nodes:
                done[arg] = self._moved(graph, crossing, arg, done)
            with graph.inserting_after(_place([done[arg] for arg in node.all_input_nodes], graph)):
                done[node] = graph.node_copy(node, done.__getitem__)
        return done[node]


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
    if node.op == "call_function" and not node.users:
        args = node.all_input_nodes
        graph.erase_node(node)
        for arg in args:
            _erase_unread(graph, arg)
