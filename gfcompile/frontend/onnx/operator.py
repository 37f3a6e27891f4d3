"""What the loader and the interpreter must know of an operator; the operators themselves are in `operators/`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gfcompile.frontend.onnx.graph import Node

Run = Callable[..., Any]  # run(node, *inputs) -> the output, or a tuple of them


@dataclass(frozen=True)
class Operator:
    """How one ONNX operator is computed on tensors, and what its inputs mean.

    `weights`: inputs that are a layer's weights, with the names these get; any float constant there is trainable.
    `host`: inputs that shape the result, so they must be known without running the model; they arrive as numpy arrays.
    `either`: inputs that arrive as they are, a tensor or a numpy array.
    `numbers`: constants of one element arrive as Python numbers, so that they stay out of the traced graph's tensors.
    `outputs`: how many outputs are computed. `refuse`: why a node with these attributes cannot be computed, if so.
    """

    run: Run
    weights: Mapping[int, str] = field(default_factory=dict)
    host: frozenset[int] = frozenset()
    either: frozenset[int] = frozenset()
    numbers: bool = False
    outputs: int = 1
    refuse: Callable[[Node], str | None] = lambda node: None


def plain(function: Callable[..., Any], numbers: bool = False) -> Operator:
    """An operator without attributes that a torch function computes as it is."""
    return Operator(lambda node, *inputs: function(*inputs), numbers=numbers)
