"""Compute now what depends on frozen tensors alone.

    f(frozen, ...)   ==>   a constant

Exact up to float rounding: evaluated in float64 by PyTorch and rounded once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, fx

from gfcompile.graph.frozen import FILLS, frozen_nodes
from gfcompile.graph.inputs import Inputs
from gfcompile.graph.nodes import emit
from gfcompile.graph.ownership import parameters_of
from gfcompile.graph.walks import nodes_above
from gfcompile.passes.base import Found, Pass, Site
from gfcompile.step import Role, Step, Value

aten = torch.ops.aten


@dataclass(frozen=True)
class Frozen(Site):
    """A frozen expression, and the step's inputs: what is folded adds constants to them."""

    inputs: Inputs = field(repr=False)


@dataclass(frozen=True)
class FoldFrozen(Pass[Frozen]):
    """Sites are the outermost frozen expressions."""

    name: ClassVar[str] = "fold_frozen"

    def find(self, step: Step) -> Found[Frozen]:
        frozen, inputs = frozen_nodes(step), Inputs(step)
        for node in step.body.graph.nodes:
            if node.op != "call_function" or node not in frozen or node.target in FILLS:
                continue
            if isinstance(node.meta["val"], Tensor) and any(user not in frozen for user in node.users):
                yield Frozen(node, inputs)

    def rewrite(self, step: Step, site: Frozen) -> None:
        node, inputs = site.node, site.inputs
        value = evaluate(step, node, inputs)
        if value.numel() > 1 and bool((value == value.reshape(-1)[0]).all()):
            graph = step.body.graph
            with graph.inserting_before(node):
                fill = value.reshape(-1)[0].item()
                constant = emit(graph, aten.full.default, list(value.shape), fill, dtype=value.dtype)
        else:
            constant = add_constant(step, node.name, value, inputs)
            names = parameters_of(node, lambda door: step.origin(inputs.value_of(door)))
            if names:
                step.origins[inputs.value_of(constant).name] = names[0]
        node.replace_all_uses_with(constant)


def add_constant(step: Step, name: str, value: Tensor, inputs: Inputs) -> fx.Node:
    """A new input of the graph that holds the value."""
    name = f"folded.{len(step.tensors)}.{name}"
    constant = inputs.add(Value(Role.CONSTANT, name), name, tuple(value.shape), value.dtype)
    step.tensors[name] = value
    return constant


def evaluate(step: Step, node: fx.Node, inputs: Inputs) -> Tensor:
    """The frozen expression above `node`, computed once for all programs that read the same memory."""
    above = sorted(nodes_above([node]))  # in the graph's order: operands first
    places = {each: f"%{index}" for index, each in enumerate(above)}
    leaves = [step.tensors[inputs.value_of(each).name] for each in above if each.op == "placeholder"]
    calls = [
        (each.op, str(each.target), repr(fx.map_arg((each.args, each.kwargs), places.__getitem__)))
        for each in above
        if each.op != "placeholder"
    ]
    memory = tuple((leaf.data_ptr(), leaf.shape, leaf.stride(), leaf.dtype) for leaf in leaves)
    question = (memory, repr([each.op for each in above]), repr(calls), node.meta["val"].dtype)
    if question not in step.evaluated:
        found = _evaluate(step, node, above, inputs)
        step.evaluated[question] = (leaves, found)  # with the leaves, their memory stays theirs
    return step.evaluated[question][1]


def _evaluate(step: Step, node: fx.Node, above: list[fx.Node], inputs: Inputs) -> Tensor:
    """In float64, the result rounded to the node's own type."""
    known: dict[fx.Node, Any] = {}
    with torch.no_grad():
        for arg in above:
            if arg.op == "placeholder":
                tensor = step.tensors[inputs.value_of(arg).name]
                known[arg] = tensor.double() if tensor.is_floating_point() else tensor
            else:
                args, kwargs = fx.map_arg((arg.args, arg.kwargs), known.__getitem__)
                if kwargs.get("dtype") is torch.float32:
                    kwargs = {**kwargs, "dtype": torch.float64}
                known[arg] = arg.target(*args, **kwargs)
    return known[node].to(node.meta["val"].dtype).contiguous()
