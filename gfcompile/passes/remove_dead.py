"""Drop what no output needs, and inputs that nobody reads.

    y = f(x) ; return x   ==>   return x

Exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import fx

from gfcompile.passes.base import Found, Pass, Site
from gfcompile.step import Role, Step

DOORS = frozenset({Role.INPUT, Role.TARGET, Role.SAMPLE_WEIGHT, Role.LR})


@dataclass(frozen=True)
class DeadInput(Site):
    """An input that nobody reads, and its place among the inputs. Those after it go first: it stays the same."""

    index: int


@dataclass(frozen=True)
class RemoveDead(Pass[Site]):
    """Nodes without users, from the end; the step's own inputs stay, whether read or not."""

    name: ClassVar[str] = "remove_dead"

    def find(self, step: Step) -> Found[Site]:
        live: set[fx.Node] = set()
        for node in reversed(step.body.graph.nodes):
            if node.op == "output" or node in live:
                live.update(node.all_input_nodes)
        places = {node: index for index, node in enumerate(step.placeholders())}
        for node in reversed(step.body.graph.nodes):
            if node.op == "output" or node in live:
                continue
            if node not in places:
                yield Site(node)
            elif step.inputs[places[node]].role not in DOORS:
                yield DeadInput(node, places[node])

    def rewrite(self, step: Step, site: Site) -> None:
        if isinstance(site, DeadInput):
            del step.inputs[site.index]
        step.body.graph.erase_node(site.node)
