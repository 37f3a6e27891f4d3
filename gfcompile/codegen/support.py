"""What of a graph cannot be translated, said so that a user can do something about it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from torch import fx

from gfcompile.graph.ownership import layer_of
from gfcompile.step import Role, Step


@dataclass(frozen=True)
class Unsupported:
    """An operator without a translation: how often, near which layers, where in the user's code.

    `only_backward` is true where its forward pass is fine: a model that is not trained above it compiles.
    """

    operator: str
    count: int
    layers: tuple[str, ...]
    line: str | None
    only_backward: bool
    detail: str | None = None

    def __str__(self) -> str:
        times = f"{self.count} times" if self.count > 1 else "once"
        near = f" near {', '.join(self.layers)}" if self.layers else ""
        line = f" ({self.line})" if self.line else ""
        detail = f": {self.detail}" if self.detail else ""
        way = "freezing the layers before it is enough" if self.only_backward else "replace it in the model"
        return f"{self.operator}, {times}{near}{line}{detail}; {way}"


def describe(step: Step, failures: Sequence[tuple[fx.Node, str | None]]) -> list[Unsupported]:
    """The failing nodes by operator, the most frequent first."""
    backward = _nodes_of_the_backward(step)
    by_operator: dict[tuple[str, bool, str | None], list[fx.Node]] = {}
    for node, detail in failures:
        key = (str(node.target).removesuffix(".default"), node in backward, detail)
        by_operator.setdefault(key, []).append(node)
    found = []
    for (operator, only_backward, detail), nodes in by_operator.items():
        layers = dict.fromkeys(_nearest_layer(step, node) for node in nodes)
        line = next((line for line in map(_source_line, nodes) if line), None)
        found.append(Unsupported(operator, len(nodes), tuple(layers)[:3], line, only_backward, detail))
    return sorted(found, key=lambda each: -each.count)


def _nodes_of_the_backward(step: Step) -> set[fx.Node]:
    """What the loss does not need. A prediction program has none."""
    if not any(value.role is Role.LOSS for value in step.outputs):
        return set()
    needed = {step.loss()}
    for node in reversed(step.body.graph.nodes):
        if node in needed:
            needed.update(node.all_input_nodes)
    return set(step.body.graph.nodes) - needed


def _source_line(node: fx.Node) -> str | None:
    """The innermost line of the user's own code that the trace remembers."""
    frames = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    foreign = ("<", "/torch/", "/gfcompile/frontend/")  # generated code, PyTorch, the tracer
    own = [(path, line) for path, line in frames if not any(mark in path for mark in foreign)]
    return f"{own[-1][0].rpartition('/')[2]}:{own[-1][1]}" if own else None


def _nearest_layer(step: Step, node: fx.Node) -> str:
    """The layer whose weight is read soonest above the node."""
    seen: set[fx.Node] = set()
    queue = [node]
    while queue:
        current = queue.pop(0)
        for arg in current.all_input_nodes:
            layer = layer_of(step, arg) if arg.op == "placeholder" else None
            if layer:
                return layer
            if arg not in seen:
                seen.add(arg)
                queue.append(arg)
    return "the input"
