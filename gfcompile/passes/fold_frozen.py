"""Compute now what depends on frozen tensors alone.

    f(frozen, ...)   ==>   a constant

Exact up to float rounding: evaluated in float64 by PyTorch and rounded once.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, fx

from gfcompile.graph.frozen import FILLS, frozen_nodes
from gfcompile.graph.nodes import emit
from gfcompile.graph.ownership import parameters_of
from gfcompile.graph.shapes import fake_like
from gfcompile.graph.walks import nodes_above
from gfcompile.passes.base import Found, Pass
from gfcompile.step import Role, Step, Value

aten = torch.ops.aten


class FoldFrozen(Pass):
    """Sites are the outermost frozen expressions."""

    name: ClassVar[str] = "fold_frozen"

    def find(self, step: Step) -> Found:
        frozen = frozen_nodes(step)
        for node in step.body.graph.nodes:
            if node.op != "call_function" or node not in frozen or node.target in FILLS:
                continue
            if isinstance(node.meta["val"], Tensor) and any(user not in frozen for user in node.users):
                yield node

    def rewrite(self, step: Step, site: fx.Node) -> None:
        value = evaluate(step, site)
        if value.numel() > 1 and bool((value == value.reshape(-1)[0]).all()):
            graph = step.body.graph
            with graph.inserting_before(site):
                fill = value.reshape(-1)[0].item()
                constant = emit(graph, aten.full.default, list(value.shape), fill, dtype=value.dtype)
        else:
            constant = add_constant(step, site.name, value)
            values = dict(zip(step.placeholders(), step.inputs, strict=True))
            names = parameters_of(site, lambda node: step.origin(values[node]))
            if names:
                step.origins[values[constant].name] = names[0]
        site.replace_all_uses_with(constant)


def add_constant(step: Step, name: str, value: Tensor) -> fx.Node:
    """A new input of the graph that holds the value."""
    graph = step.body.graph
    name = f"folded.{len(step.tensors)}.{name}"
    with graph.inserting_after(step.placeholders()[-1]):
        constant = graph.placeholder(name.replace(".", "_"))
    constant.meta["val"] = fake_like(graph, tuple(value.shape), value.dtype)
    step.inputs.append(Value(Role.CONSTANT, name))
    step.tensors[name] = value
    return constant


def evaluate(step: Step, node: fx.Node) -> Tensor:
    """Run the frozen expression above `node` in float64, and round the result to the node's own type."""
    known: dict[fx.Node, Any] = {}
    doors = dict(zip(step.placeholders(), step.inputs, strict=True))
    with torch.no_grad():
        for arg in sorted(nodes_above([node])):  # in the graph's order: operands first
            if arg.op == "placeholder":
                tensor = step.tensors[doors[arg].name]
                known[arg] = tensor.double() if tensor.is_floating_point() else tensor
            else:
                args, kwargs = fx.map_arg((arg.args, arg.kwargs), known.__getitem__)
                if kwargs.get("dtype") is torch.float32:
                    kwargs = {**kwargs, "dtype": torch.float64}
                known[arg] = arg.target(*args, **kwargs)
    return known[node].to(node.meta["val"].dtype).contiguous()
