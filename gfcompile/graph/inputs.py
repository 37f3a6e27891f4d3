"""The inputs of a step, found in one look: by role and name, and by node. A pass that adds many looks once."""

from __future__ import annotations

import torch
from torch import fx

from gfcompile.graph.shapes import fake_like
from gfcompile.step import Step, Value


class Inputs:
    """Kept up to date by `add`: while it is in use, inputs are added through it alone."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._values = dict(zip(step.placeholders(), step.inputs, strict=True))
        self._nodes = {value: node for node, value in self._values.items()}

    def value_of(self, node: fx.Node) -> Value:
        """What a placeholder stands for."""
        return self._values[node]

    def node_of(self, value: Value) -> fx.Node:
        """The placeholder of an input that the step has."""
        return self._nodes[value]

    def get(self, value: Value, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> fx.Node:
        """The step's input of this role and name; a new one after the others if it has none."""
        if value in self._nodes:
            return self._nodes[value]
        return self.add(value, f"{value.role}_{value.name}", shape, dtype)

    def add(self, value: Value, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> fx.Node:
        """A new one after the others, its node named like `name`."""
        graph = self._step.body.graph
        with graph.inserting_after(next(reversed(self._values))):
            node = graph.placeholder(name.replace(".", "_").replace("/", "_"))
        node.meta["val"] = fake_like(graph, shape, dtype)
        self._step.inputs.append(value)
        self._values[node], self._nodes[value] = value, node
        return node
