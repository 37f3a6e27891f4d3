"""What a translation writes with: ONNX nodes and constants, each value under a name of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from onnx import NodeProto, TensorProto, helper, numpy_helper

OPSET, IR_VERSION = 20, 10  # functions with an overload, as the gf operators need them, exist since IR 10
TYPES = {
    torch.float32: TensorProto.FLOAT,
    torch.float64: TensorProto.DOUBLE,
    torch.float16: TensorProto.FLOAT16,
    torch.bfloat16: TensorProto.BFLOAT16,
    torch.complex64: TensorProto.COMPLEX64,
    torch.complex128: TensorProto.COMPLEX128,
    torch.int64: TensorProto.INT64,
    torch.int32: TensorProto.INT32,
    torch.int16: TensorProto.INT16,
    torch.int8: TensorProto.INT8,
    torch.uint8: TensorProto.UINT8,
    torch.uint16: TensorProto.UINT16,
    torch.uint32: TensorProto.UINT32,
    torch.uint64: TensorProto.UINT64,
    torch.bool: TensorProto.BOOL,
}


class NoTranslation(LookupError):  # noqa: N818 - a finding that the writer answers, not a failure
    """An operator, or one of its options, that has no ONNX form here; the text names it."""


@dataclass(frozen=True)
class Value:
    """A tensor: its name in the ONNX graph, and what tracing knows about it."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    contiguous: bool = True

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> Value:
        """From a (possibly fake) tensor."""
        return cls(name, tuple(int(size) for size in tensor.shape), tensor.dtype, tensor.is_contiguous())

    @property
    def rank(self) -> int:
        """The number of its axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of its elements."""
        return math.prod(self.shape)


Operand = Value | str | Sequence[int] | np.ndarray | None
"""A value, a value's name, a list of int64, a constant, or an optional input that is left out."""


class Emitter:
    """Collects the nodes and constants of one graph or function body; `prefix` sets its names apart from others."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.nodes: list[NodeProto] = []
        self.scope = "value"
        self._constants: dict[tuple[str, tuple[int, ...], bytes], TensorProto] = {}
        self._named = 0

    @property
    def constants(self) -> list[TensorProto]:
        """Every constant that the nodes read."""
        return list(self._constants.values())

    def op(self, kind: str, *inputs: Operand, **attributes: Any) -> str:
        """A node with one result; returns the result's name. Attributes that are None are left out."""
        return self.ops(kind, 1, *inputs, **attributes)[0]

    def ops(self, kind: str, results: int, *inputs: Operand, **attributes: Any) -> list[str]:
        """A node with several results."""
        return self.node(NodeProto(op_type=kind), results, inputs, attributes)

    def node(
        self, node: NodeProto, results: int, inputs: Sequence[Operand], attributes: Mapping[str, Any]
    ) -> list[str]:
        """Complete a node of any domain."""
        node.input.extend(self._name(operand) for operand in inputs)
        for _ in range(results):
            node.output.append(f"{self.scope}.{self._named}")
            self._named += 1
        node.attribute.extend(
            helper.make_attribute(key, value) for key, value in attributes.items() if value is not None
        )
        self.nodes.append(node)
        return list(node.output)

    def constant(self, array: np.ndarray) -> str:
        """Equal constants are stored once."""
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = numpy_helper.from_array(array, f"{self.prefix}constant.{len(self._constants)}")
        return str(self._constants[key].name)

    def scalar(self, number: float, dtype: torch.dtype) -> str:
        """A number as a constant of this type."""
        return self.constant(torch.tensor(number, dtype=dtype).numpy())

    def cast(self, value: Value, dtype: torch.dtype) -> str:
        """The value in a type; itself if it has it."""
        return value.name if value.dtype == dtype else self.op("Cast", value, to=TYPES[dtype])

    def number(self, operand: Value | float, dtype: torch.dtype) -> str:
        """An operand of arithmetic: a tensor in that type, or a Python number as a constant."""
        return self.cast(operand, dtype) if isinstance(operand, Value) else self.scalar(operand, dtype)

    def filled(self, shape: Sequence[int], number: float, dtype: torch.dtype) -> str:
        """A tensor of one number; its bytes are not stored."""
        if not shape:
            return self.scalar(number, dtype)
        value = numpy_helper.from_array(torch.tensor([number], dtype=dtype).numpy())
        return self.op("ConstantOfShape", list(shape), value=value)

    def copy(self, value: Operand, name: str) -> None:
        """The value once more, under a given name."""
        self.nodes.append(NodeProto(op_type="Identity", input=[self._name(value)], output=[name]))

    def rename(self, since: int, old: str, new: str) -> bool:
        """Give a result of one of the nodes written `since` then its final name; False if none of them made it."""
        written = self.nodes[since:]
        if not any(old in node.output for node in written):
            return False
        for node in written:
            for names in (node.input, node.output):
                for index, name in enumerate(names):
                    if name == old:
                        names[index] = new
        return True

    def _name(self, operand: Operand) -> str:
        if operand is None:
            return ""
        if isinstance(operand, str):
            return operand
        if isinstance(operand, Value):
            return operand.name
        if isinstance(operand, np.ndarray):
            return self.constant(operand)
        return self.constant(np.array(operand, dtype=np.int64))
