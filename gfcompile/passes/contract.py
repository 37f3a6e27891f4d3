"""The contract between passes: a well-formed graph, a signature that fits it, and on every node the shape it has.

Shapes are inferred again where a pass changed something: of new nodes, of nodes whose arguments are of another kind
now, and of what reads a node whose shape came out another. What `emit` inferred for such arguments stands.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, fx

from gfcompile.graph.nodes import INFERRED
from gfcompile.graph.shapes import infer
from gfcompile.step import Step

Arguments = list[Any]  # args and kwargs


def find_fault(step: Step, changes: Changes | None = None) -> str | None:
    """What of a step breaks the contract; with the changes of a pass, what changed is given its shape first."""
    step.body.graph.lint()
    if len(step.placeholders()) != len(step.inputs) or len(step.results()) != len(step.outputs):
        return "a graph that does not fit its signature"
    fault = changes.infer_shapes(step) if changes is not None else None
    if fault is not None:
        return fault
    for node in step.body.graph.nodes:
        if node.op in ("placeholder", "call_function") and "val" not in node.meta:
            return f"'{node.name}' without a shape"
    return None


class Changes:
    """What a pass changes: every node's arguments and value as they are now, to be compared with when it is done."""

    def __init__(self, step: Step) -> None:
        self._before = {node: (node.args, node.kwargs, node.meta.get("val")) for node in step.body.graph.nodes}

    def infer_shapes(self, step: Step) -> str | None:
        """Give every changed node its shape; returns a fault where a new node was given another than it has."""
        reshaped: set[fx.Node] = set()  # nodes whose shape or type is another than it was
        for node in step.body.graph.nodes:
            if node.op != "call_function":
                continue
            *known, value = node.meta.pop(INFERRED, None) or self._before.get(node) or (None, None, None)
            recorded = node.meta.get("val")
            is_written = recorded is not None and (recorded is not value or node not in self._before)  # by the pass
            has_other_operands = not reshaped.isdisjoint(node.all_input_nodes)
            is_known = value is not None and recorded is value and _are_alike(known, [node.args, node.kwargs])
            if is_known and not has_other_operands:
                continue
            try:
                value = infer(step.body.graph, node.target, node.args, node.kwargs)
            except RuntimeError as error:  # PyTorch's for operands that do not fit
                return f"'{node.name}' with operands that do not fit ({error})"
            if _kind(value) == _kind(recorded):
                continue  # what is recorded stays: it has the strides of the trace
            if is_written and not has_other_operands:
                return f"'{node.name}' recorded as {_kind(recorded)}, and it is {_kind(value)}"
            node.meta["val"] = value
            reshaped.add(node)
        return None


def _are_alike(one: Arguments, other: Arguments) -> bool:
    """Whether a call gives the same shape and type for both: nothing differs but which nodes of one kind are read."""
    if one[0] is other[0] and one[1] is other[1]:  # fx makes new ones whenever an argument changes
        return True
    return _kinds(one) == _kinds(other)


def _kinds(arguments: Arguments) -> str:
    return repr(fx.map_arg(arguments, lambda node: _kind(node.meta.get("val"))))  # as text, 1 is neither 1.0 nor True


def _kind(value: Any) -> Any:
    """The shape and type of a value, or of each of several."""
    if isinstance(value, list | tuple):
        return [_kind(part) for part in value]
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}" if isinstance(value, Tensor) else value
