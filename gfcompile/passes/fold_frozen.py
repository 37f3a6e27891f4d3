"""Compute now what depends on frozen tensors alone.

    f(frozen, ...)   ==>   a constant

Exact up to float rounding: evaluated in float64 by PyTorch and rounded once.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, fx

from gfcompile.passes.base import Found, Pass, fake_like
from gfcompile.step import Role, Step, Value


class FoldFrozen(Pass):
    """Sites are the outermost frozen expressions."""

    name: ClassVar[str] = "fold_frozen"

    def find(self, step: Step) -> Found:
        frozen = frozen_nodes(step)
        for node in step.body.graph.nodes:
            if node in frozen and node.op == "call_function" and any(user not in frozen for user in node.users):
                yield node

    def rewrite(self, step: Step, site: fx.Node) -> None:
        graph = step.body.graph
        value = _evaluate(step, site, {})
        name = f"folded.{len(step.tensors)}.{site.name}"
        with graph.inserting_after(step.placeholders()[-1]):
            constant = graph.placeholder(name.replace(".", "_"))
        constant.meta["val"] = fake_like(graph, tuple(value.shape), value.dtype)
        step.inputs.append(Value(Role.CONSTANT, name))
        step.tensors[name] = value
        site.replace_all_uses_with(constant)


def frozen_nodes(step: Step) -> set[fx.Node]:
    """Nodes that are the same in every step."""
    frozen = {node for node, value in zip(step.placeholders(), step.inputs, strict=True) if step.is_frozen(value)}
    for node in step.body.graph.nodes:
        if node.op == "call_function" and node.all_input_nodes and all(arg in frozen for arg in node.all_input_nodes):
            frozen.add(node)
    return frozen


def _evaluate(step: Step, node: fx.Node, known: dict[fx.Node, Any]) -> Tensor:
    """Run the frozen expression above `node` in float64, and round the result to the node's own type."""

    def value_of(arg: fx.Node) -> Any:
        if arg not in known:
            if arg.op == "placeholder":
                tensor = step.tensors[step.inputs[step.placeholders().index(arg)].name]
                known[arg] = tensor.double() if tensor.is_floating_point() else tensor
            else:
                args, kwargs = fx.map_arg((arg.args, arg.kwargs), value_of)
                known[arg] = arg.target(*args, **kwargs)
        return known[arg]

    with torch.no_grad():
        result = value_of(node)
    return result.to(node.meta["val"].dtype).contiguous()
