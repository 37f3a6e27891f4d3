"""Which layer a value in a graph belongs to: the module whose parameters it is computed from, and from nothing else."""

from __future__ import annotations

from collections.abc import Callable, Collection

from torch import fx

from gfcompile.walks import nodes_above

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
