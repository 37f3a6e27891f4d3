"""Compute equal things of the backward pass once.

    a = sub(x, mean) ; b = sub(x, mean)   ==>   a = sub(x, mean)

Exact. Only among nodes after the loss: what the backward pass computes again from a kept tensor, rather than keep a
second one, stays that way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import fx

from gfcompile.passes.base import Found, Pass, Site
from gfcompile.step import Step


@dataclass(frozen=True)
class Repetition(Site):
    """A call that repeats `first`, which is no site itself."""

    first: fx.Node


@dataclass(frozen=True)
class MergeEqual(Pass[Repetition]):
    """Sites are the repetitions."""

    name: ClassVar[str] = "merge_equal"

    def find(self, step: Step) -> Found[Repetition]:
        first: dict[Any, fx.Node] = {}
        kept: dict[fx.Node, fx.Node] = {}
        for node in _behind_the_loss(step):
            kept[node] = first.setdefault(_key(node, kept), node)
            if kept[node] is not node:
                yield Repetition(node, kept[node])

    def rewrite(self, step: Step, site: Repetition) -> None:
        site.node.replace_all_uses_with(site.first)
        step.body.graph.erase_node(site.node)


def _behind_the_loss(step: Step) -> Iterator[fx.Node]:
    node = step.loss().next
    while node.op != "output":
        yield node
        node = node.next


def _key(node: fx.Node, kept: dict[fx.Node, fx.Node]) -> str:
    """Equal for equal calls; `kept` names the first of each repeated operand."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda arg: kept.get(arg, arg))
    return f"{node.target} {args!r} {kwargs!r}"
