"""Compute each patch sum where its source is produced, so that only x_tilde lives until the backward pass.

    x = relu(...) ; ... ; loss ; ... ; gf.patch_sum(x)   ==>   x = relu(...) ; gf.patch_sum(x) ; ... ; loss ; ...

Exact: only the order changes.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import fx

from gfcompile.ops import gf
from gfcompile.passes.base import Found, Pass
from gfcompile.step import Step

SCALE = torch.ops.aten.mul.Scalar


class Hoist(Pass):
    """Move patch sums, and the scaling behind them, up to their producer."""

    name: ClassVar[str] = "hoist"

    def find(self, step: Step) -> Found:
        for node in step.body.graph.nodes:
            if node.target is gf.patch_sum.default and _place(node).next is not node:
                yield node

    def rewrite(self, step: Step, site: fx.Node) -> None:
        _place(site).append(site)
        scaled = [user for user in site.users if user.target is SCALE]
        for user in scaled:
            site.append(user)


def _place(node: fx.Node) -> fx.Node:
    """The last node that must come before: the producer, or the last placeholder."""
    source = node.all_input_nodes[0]
    while source.op == "placeholder" and source.next.op == "placeholder":
        source = source.next
    return source
