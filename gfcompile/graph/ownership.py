"""Which layer a value in a graph belongs to: the module whose parameters it is computed from, and from nothing else."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from torch import fx

from gfcompile.graph.inputs import Inputs
from gfcompile.graph.walks import nodes_above
from gfcompile.ops import gf
from gfcompile.step import STATE, Role, Step

Owner = Callable[[fx.Node], str | None]  # placeholder -> its parameter's name; None for any other tensor


def module_of(parameter: str) -> str:
    """The module that a user sees as the parameter's owner: what re-parametrizes it is not a layer of its own."""
    return (
        parameter.partition(".parametrizations.")[0]
        if ".parametrizations." in parameter
        else parameter.rpartition(".")[0]
    )


def find_weights(graph: fx.Graph, constants: Collection[fx.Node]) -> set[fx.Node]:
    """Calls whose result depends on `constants` (parameters, buffers) alone: standardised, tied or reshaped weights."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "call_function" and all(arg in constants or arg in found for arg in node.all_input_nodes):
            found.add(node)
    return found


def parameters_of(weight: fx.Node, owner: Owner) -> list[str]:
    """Names of the parameters that a weight is computed from, the largest first: that one is the weight itself."""
    above = nodes_above([weight])
    named = [(node.meta["val"].numel(), owner(node)) for node in above if node.op == "placeholder"]
    return [name for _, name in sorted(((size, name) for size, name in named if name), key=lambda pair: -pair[0])]


def layer_of(step: Step, weight: Any, inputs: Inputs | None = None) -> str | None:
    """The module whose weight the node is, or is computed from; None for what depends on the input.

    Who asks for many layers looks the step's inputs up once, and gives them.
    """
    if not isinstance(weight, fx.Node):
        return None
    if weight.target is gf.take_weights.default:
        weight = weight.args[0]
    value_of = (inputs or Inputs(step)).value_of
    doors = [value_of(node) for node in nodes_above([weight]) if node.op == "placeholder"]
    if any(value.role not in STATE and value.role is not Role.CONSTANT for value in doors):
        return None
    names = parameters_of(weight, lambda node: value_of(node).name if value_of(node).role is Role.PARAMETER else None)
    return module_of(names[0]) if names else None
