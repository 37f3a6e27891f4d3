"""Nodes whose inputs are known without running the model: shape arithmetic, computed in numpy while torch traces."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator


class HostNode:
    """One node, computed by ONNX's own reference implementation of its operator."""

    def __init__(self, node: NodeProto, opset: int) -> None:
        self._node = node
        self._opset = opset

    @functools.cached_property
    def _evaluator(self) -> ReferenceEvaluator:
        """Built when first run: what is wrong with the node is then reported like any failure of the model."""
        node = self._node
        values = [_untyped(name) for name in dict.fromkeys(node.input) if name]
        results = [_untyped(name) for name in node.output if name]
        graph = helper.make_graph([node], "host", values, results)
        return ReferenceEvaluator(helper.make_model(graph, opset_imports=[helper.make_opsetid("", self._opset)]))

    def __call__(self, *inputs: np.ndarray | None) -> list[np.ndarray]:
        """The outputs that have a name."""
        feeds = {name: value for name, value in zip(self._node.input, inputs) if name}
        return [np.asarray(value) for value in self._evaluator.run(None, feeds)]

    def __deepcopy__(self, memo: Any) -> HostNode:
        return self  # it never changes, and the evaluator's schemas cannot be copied


def _untyped(name: str) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None)


def shape_of_value(value: Any, start: int = 0, end: int | None = None) -> np.ndarray:
    """What Shape gives."""
    return np.array([int(size) for size in value.shape[start:end]], np.int64)
