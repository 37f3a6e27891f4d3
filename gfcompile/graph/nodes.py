"""Nodes: what they are called, what reads them, and how a pass makes new ones."""

from __future__ import annotations

import operator
from typing import Any

from torch import fx

from gfcompile.graph.shapes import infer

INFERRED = "inferred"  # in a node's meta, until the pass is done: its arguments, and the value inferred for them


def emit(graph: fx.Graph, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
    """Insert a call at the graph's insertion point, with its shape."""
    node = graph.call_function(target, args, kwargs)
    node.meta["val"] = infer(graph, target, args, kwargs)
    node.meta[INFERRED] = (node.args, node.kwargs, node.meta["val"])
    return node


def operator_name(node: fx.Node) -> str:
    """`mul` for aten.mul.Tensor, `channel_mix` for gf.channel_mix.default."""
    parts = str(node.target).split(".")
    return parts[1] if len(parts) > 1 else node.name


def results_of(node: fx.Node) -> dict[int, fx.Node]:
    """The getitem users of a node with several results, by index."""
    return {int(user.args[1]): user for user in node.users if user.target is operator.getitem}
