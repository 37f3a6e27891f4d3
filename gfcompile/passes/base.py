"""The shape of every pass: `find` only looks and yields sites with what it learnt, `rewrite` only changes one site."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from torch import fx

from gfcompile.errors import ContractError
from gfcompile.passes.contract import Changes, find_fault
from gfcompile.step import Event, Materialised, Refusal, Step


@dataclass(frozen=True)
class Site:
    """A place to rewrite. A pass that learns more in `find` than the node has a site with fields for it.

    Sites may be rewritten after others of the same run, so a site holds nodes only that none of them replaces.
    """

    node: fx.Node

    @property
    def label(self) -> str:
        """How the log names it; asked before anything is rewritten."""
        return str(self.node.name)


S = TypeVar("S", bound=Site)
Found = Iterator[S | Refusal | Materialised]


class Pass(ABC, Generic[S]):
    """One rewrite: a frozen dataclass whose fields are its options. A subclass has `find`, and `rewrite` or
    `rewrite_all`; `run` is the same for all."""

    name: ClassVar[str]

    @abstractmethod
    def find(self, step: Step) -> Found[S]:
        """Yield the sites; a refusal with its reason for each that was wanted but cannot be; what stays large."""

    def rewrite(self, step: Step, site: S) -> None:
        """Change one site in place."""
        raise NotImplementedError(f"{type(self).__name__} rewrites its sites together")

    def rewrite_all(self, step: Step, sites: list[S]) -> None:
        """Change every site, in the order found. Also called without any: to override where sites hang together."""
        for site in sites:
            self.rewrite(step, site)

    def run(self, step: Step) -> Step:
        """Find, rewrite, check, with the shapes of what changed inferred again, record."""
        start = time.perf_counter()
        changes = Changes(step)
        found = list(self.find(step))
        sites = [item for item in found if not isinstance(item, Refusal | Materialised)]
        labels = [site.label for site in sites]
        self.rewrite_all(step, sites)
        fault = find_fault(step, changes)
        step.log.append(
            Event(
                self.name,
                labels,
                [item for item in found if isinstance(item, Refusal)],
                time.perf_counter() - start,
                [item for item in found if isinstance(item, Materialised)],
            )
        )
        if fault is not None:
            raise ContractError(
                f"pass '{self.name}' left {fault}; replay it with: gfcompile run-pass {self.name} DUMP.txt, "
                "where --dump DIR writes the graph before it"
            )
        return step
