"""Nodes whose inputs are known without running the model: shape arithmetic, computed in numpy while torch traces."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator

# Of constants, besides the operators of the table. Others loop, draw by lot, or match texts.
_NAMES = """
    Abs Add And ArgMax ArgMin BitShift Cast CastLike Ceil Clip Compress Concat ConstantOfShape CumSum
    DequantizeLinear Div Equal Exp Expand EyeLike Flatten Floor Gather GatherElements GatherND Greater
    GreaterOrEqual Identity Less LessOrEqual Log MatMul Max Min Mod Mul Neg NonZero Not OneHot Or Pad Pow
    QuantizeLinear Range Reciprocal ReduceL1 ReduceL2 ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
    ReduceSumSquare Reshape Round ScatterElements ScatterND Sign Slice Softmax Split Sqrt Squeeze Sub Sum Tile TopK
    Transpose Trilu Unsqueeze Where Xor
"""
ARITHMETIC = frozenset(_NAMES.split())
LARGEST = 1 << 27  # values that a node makes of a few numbers


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
        _check_size(self._node.op_type, [value for value in inputs if value is not None])
        feeds = {name: value for name, value in zip(self._node.input, inputs) if name}
        return [np.asarray(value) for value in self._evaluator.run(None, feeds)]

    def __deepcopy__(self, memo: Any) -> HostNode:
        return self  # it never changes, and the evaluator's schemas cannot be copied


def _check_size(op: str, inputs: list[np.ndarray]) -> None:
    """Refuse what would take gigabytes: the reference implementation computes whatever it is told."""
    count = 0.0
    if op == "ConstantOfShape":
        count = float(np.prod(inputs[0], dtype=np.float64))
    elif op in ("Expand", "Tile"):
        count = float(np.prod(inputs[1], dtype=np.float64)) * (inputs[0].size if op == "Tile" else 1)
    elif op == "Range":
        start, limit, delta = (float(value) for value in inputs)
        count = (limit - start) / delta if delta else np.inf
    elif op == "OneHot":
        count = float(inputs[1].reshape(-1)[0]) * inputs[0].size
    elif op == "Pad":
        count = float(np.prod(np.abs(inputs[1]).reshape(2, -1).sum(0) + np.array(inputs[0].shape), dtype=np.float64))
    if count > LARGEST:
        raise ValueError(f"{op} makes {count:.3g} values of a few")


def _untyped(name: str) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None)


def shape_of_value(value: Any, start: int = 0, end: int | None = None) -> np.ndarray:
    """What Shape gives."""
    return np.array([int(size) for size in value.shape[start:end]], np.int64)
