"""The training step of a plan, cut out of the trace of one that trains more: tracing takes seconds, this does not.

before: forward, loss, gradients of a, b and c   ==>   after: forward, loss, gradients of b

Exact where a model computes the same whatever is trained: what only a's and c's gradients need is dropped, and backward
operators are asked for nothing that nobody reads, as autograd asks them. A model may look at what is trained, and its
own trace is another then: `are_equal` tells.
"""

from __future__ import annotations

from torch import Tensor, fx

from gfcompile.graph.nodes import results_of
from gfcompile.plan import Plan
from gfcompile.step import Role, Step

MASK = "output_mask"  # the argument of a backward operator that says which results are wanted


def narrow(step: Step, plan: Plan) -> Step:
    """The traced step under a plan that trains none but parameters of the step's own plan; `step` stays as it is."""
    found = step.duplicate(plan)
    kept = [
        (node, value)
        for node, value in zip(found.results(), found.outputs, strict=True)
        if value.role is not Role.GRADIENT or value.name in plan.trained_parameters
    ]
    found.body.graph.output_node().args = (tuple(node for node, _ in kept),)
    found.outputs = [value for _, value in kept]
    drop_unread(found)
    return found


def drop_unread(step: Step) -> None:
    """Calls that no output needs, from the end; what a call computes in vain beside what is read is not asked for."""
    for node in reversed(step.body.graph.nodes):
        if node.op != "call_function":
            continue
        if not node.users:
            step.body.graph.erase_node(node)
        else:
            _ask_for_less(node)


def _ask_for_less(node: fx.Node) -> None:
    names = [each.name for each in node.target._schema.arguments] if hasattr(node.target, "_schema") else []
    if MASK not in names:
        return
    at, read, values = names.index(MASK), results_of(node), node.meta["val"]
    mask = [wanted and index in read for index, wanted in enumerate(node.args[at])]
    node.update_arg(at, mask)
    node.meta["val"] = tuple(value if wanted else None for value, wanted in zip(values, mask, strict=True))


def are_equal(one: Step, other: Step) -> bool:
    """Whether two steps are the same call by call, whatever their nodes are called."""
    return (one.inputs, one.outputs, one.updated_buffers) == (other.inputs, other.outputs, other.updated_buffers) and (
        _spelt(one) == _spelt(other)
    )


def _spelt(step: Step) -> list[str]:
    places = {node: f"%{at}" for at, node in enumerate(step.body.graph.nodes)}
    return [
        f"{node.op} {node.target if node.op == 'call_function' else ''} {_kind(node.meta.get('val'))}"
        f" {fx.map_arg((node.args, node.kwargs), places.__getitem__)}"
        for node in step.body.graph.nodes
    ]


def _kind(value: object) -> object:
    """What later stages read of a value: type, shape and strides."""
    if isinstance(value, list | tuple):
        return [_kind(part) for part in value]
    return (value.dtype, tuple(value.shape), value.stride()) if isinstance(value, Tensor) else value
