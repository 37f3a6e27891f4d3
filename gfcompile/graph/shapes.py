"""Shapes of a graph's nodes, and of nodes that are yet to be made: inferred under the mode of the trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_map_only

from gfcompile.errors import ContractError

_INFERRED = "gfcompile_inferred"  # an attribute of the mode: kept elsewhere, its fake tensors would keep it alive


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
    return infer_under(fake_mode_of(graph), target, args, kwargs)


def infer_under(
    mode: FakeTensorMode, target: fx.node.Target, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """The same fake tensors for arguments of the same kinds.

    PyTorch takes a millisecond for each, a network asks for thousands, and most of its calls are alike.
    """
    known: dict[object, object] = vars(mode).setdefault(_INFERRED, {})
    key = (target, _kinds(args), _kinds(kwargs))
    if key not in known:
        values = fx.map_arg((args, kwargs), lambda node: node.meta["val"])
        with mode, torch.no_grad():
            found = target(*values[0], **values[1])
            known[key] = tree_map_only(Tensor, Tensor.detach, found)  # views hold their bases, unseen by Python
    return known[key]


def _kinds(value: object) -> object:
    """All that a result's shape, type and strides depend on."""
    if isinstance(value, fx.Node):
        return _kinds(value.meta["val"])
    if isinstance(value, Tensor):
        return value.dtype, value.shape, value.stride()
    if isinstance(value, Mapping):
        return tuple((name, _kinds(part)) for name, part in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(_kinds, value))
    return repr(value)  # as text, 1 is neither 1.0 nor True


def fake_like(graph: fx.Graph, shape: tuple[int, ...], dtype: torch.dtype) -> Any:
    """A fake tensor for a new placeholder."""
    with fake_mode_of(graph):
        return torch.empty(shape, dtype=dtype)
