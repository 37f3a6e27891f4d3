"""Nodes: what they are called, what reads them, and how a pass makes new ones."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from gfcompile.graph.shapes import fake_like, infer
from gfcompile.step import Step, Value


def emit(graph: fx.Graph, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
    """Insert a call at the graph's insertion point, with its shape."""
    node = graph.call_function(target, args, kwargs)
    node.meta["val"] = infer(graph, target, args, kwargs)
    return node


def input_of(step: Step, value: Value, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> fx.Node:
    """The step's input of this role and name; a new one after the others if it has none."""
    if value in step.inputs:
        return step.placeholder(value.role, value.name)
    graph = step.body.graph
    with graph.inserting_after(step.placeholders()[-1]):
        node = graph.placeholder(f"{value.role}_{value.name}".replace(".", "_").replace("/", "_"))
    node.meta["val"] = fake_like(graph, shape, dtype)
    step.inputs.append(value)
    return node


def operator_name(node: fx.Node) -> str:
    """`mul` for aten.mul.Tensor, `channel_mix` for gf.channel_mix.default."""
    parts = str(node.target).split(".")
    return parts[1] if len(parts) > 1 else node.name


def results_of(node: fx.Node) -> dict[int, fx.Node]:
    """The getitem users of a node with several results, by index."""
    return {int(user.args[1]): user for user in node.users if user.target is operator.getitem}
