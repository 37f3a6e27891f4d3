"""The shape of every pass: `find` only looks and yields sites or refusals, `rewrite` only changes one site."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar

from torch import fx

from gfcompile.errors import ContractError
from gfcompile.step import Event, Refusal, Step

Found = Iterator[fx.Node | Refusal]


class Pass(ABC):
    """One rewrite. The base class runs it, checks the result, and records what it did."""

    name: ClassVar[str]

    @abstractmethod
    def find(self, step: Step) -> Found:
        """Yield the nodes to rewrite, and a refusal with its reason for each that was wanted but cannot be."""

    @abstractmethod
    def rewrite(self, step: Step, site: fx.Node) -> None:
        """Change one site in place."""

    def rewrite_all(self, step: Step, sites: list[fx.Node]) -> None:
        """Change every site. A pass whose rewrites share an analysis of the whole graph makes it here, once."""
        for site in sites:
            self.rewrite(step, site)

    def describe(self, site: fx.Node) -> str:
        """How the log names a site."""
        return site.name

    def run(self, step: Step) -> Step:
        """Find, rewrite, check, record."""
        start = time.perf_counter()
        found = list(self.find(step))
        sites = [item for item in found if isinstance(item, fx.Node)]
        names = [self.describe(site) for site in sites]
        self.rewrite_all(step, sites)
        step.log.append(
            Event(self.name, names, [item for item in found if isinstance(item, Refusal)], time.perf_counter() - start)
        )
        check(step, self.name)
        return step


def check(step: Step, pass_name: str) -> None:
    """The contract between passes: a well-formed graph, a signature that fits it, shapes on every tensor."""
    step.body.graph.lint()
    if len(step.placeholders()) != len(step.inputs) or len(step.results()) != len(step.outputs):
        raise ContractError(f"pass '{pass_name}' left a graph that does not fit its signature; replay with --dump DIR")
    for node in step.body.graph.nodes:
        if node.op in ("placeholder", "call_function") and "val" not in node.meta:
            raise ContractError(f"pass '{pass_name}' left '{node.name}' without a shape; replay with --dump DIR")
