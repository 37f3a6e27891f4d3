"""Shapes of a graph's nodes, and of nodes that are yet to be made: inferred under the mode of the trace."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from gfcompile.errors import ContractError


def shape_of(node: fx.Node) -> tuple[int, ...]:
    """The shape of a node with one result."""
    return tuple(int(size) for size in node.meta["val"].shape)


def fake_mode_of(graph: fx.Graph) -> FakeTensorMode:
    """The mode under which the graph was traced: shapes of new nodes are inferred in it."""
    for node in graph.nodes:
        if isinstance(node.meta.get("val"), FakeTensor):
            mode: FakeTensorMode = node.meta["val"].fake_mode
            return mode
    raise ContractError("the graph has no traced tensors")


def infer(graph: fx.Graph, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What `target` gives for these arguments, as fake tensors."""
    values = fx.map_arg((args, kwargs), lambda node: node.meta["val"])
    with fake_mode_of(graph), torch.no_grad():
        return target(*values[0], **values[1])


def fake_like(graph: fx.Graph, shape: tuple[int, ...], dtype: torch.dtype) -> Any:
    """A fake tensor for a new placeholder."""
    with fake_mode_of(graph):
        return torch.empty(shape, dtype=dtype)
