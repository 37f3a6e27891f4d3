"""Drop what no output needs, and inputs that nobody reads.

    y = f(x) ; return x   ==>   return x

Exact.
"""

from __future__ import annotations

from typing import ClassVar

from torch import fx

from gfcompile.passes.base import Found, Pass
from gfcompile.step import Role, Step

DOORS = frozenset({Role.INPUT, Role.TARGET, Role.SAMPLE_WEIGHT, Role.LR})


class RemoveDead(Pass):
    """Nodes without users, from the end; the step's own inputs stay, whether read or not."""

    name: ClassVar[str] = "remove_dead"

    def find(self, step: Step) -> Found:
        live: set[fx.Node] = set()
        for node in reversed(step.body.graph.nodes):
            if node.op == "output" or node in live:
                live.update(node.all_input_nodes)
        doors = {n for n, value in zip(step.placeholders(), step.inputs, strict=True) if value.role in DOORS}
        for node in reversed(step.body.graph.nodes):
            if node.op != "output" and node not in live and node not in doors:
                yield node

    def rewrite(self, step: Step, site: fx.Node) -> None:
        if site.op == "placeholder":
            del step.inputs[step.placeholders().index(site)]
        step.body.graph.erase_node(site)
