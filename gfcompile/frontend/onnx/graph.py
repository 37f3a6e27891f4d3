"""The model as plain values: what the loader decides on and the module interprets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from gfcompile.errors import UserError
from gfcompile.frontend.foreign import one_line
from gfcompile.frontend.onnx.read import graphs_in, opset_of, qualified_op

_SCOPES = "pkg.torch.onnx.name_scopes"


@dataclass(frozen=True)
class Node:
    """One operator call; an absent optional input or output has the name ""."""

    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    opset: int
    branches: tuple[Block, ...] = ()  # of an If: then, else
    scope: str = ""  # the torch module it came from, where PyTorch's exporter wrote it down

    def get(self, attribute: str, default: Any = None) -> Any:
        """An attribute, or the default where the file has none."""
        return self.attributes.get(attribute, default)


@dataclass(frozen=True)
class Block:
    """Nodes in order of execution and the values they hand out."""

    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Input:
    """A graph input; a size is None where the file leaves it open, the shape where it says nothing."""

    name: str
    element_type: int
    shape: tuple[int | None, ...] | None


@dataclass(frozen=True)
class Graph:
    """A whole model. `constants` are the initializers, those of branches included: ONNX names are unique."""

    inputs: tuple[Input, ...]
    body: Block
    constants: Mapping[str, np.ndarray]
    protos: Mapping[str, NodeProto] = field(repr=False, default_factory=dict)  # by node name, for the host


def parse(model: ModelProto, path: str) -> Graph:
    """The model's graph without the nodes nothing depends on."""
    constants: dict[str, np.ndarray] = {}
    for graph in graphs_in(model.graph):
        for tensor in graph.initializer:
            if tensor.name in constants:
                raise UserError(f"{path}: two constants are called '{tensor.name}'; export it again")
            constants[tensor.name] = _array(tensor, path)
    inputs = tuple(
        Input(value.name, value.type.tensor_type.elem_type, _shape(value))
        for value in model.graph.input
        if value.name not in constants
    )
    names: dict[str, NodeProto] = {}
    body = _block(model.graph, opset_of(model), names)
    return Graph(inputs, body, constants, names)


def all_nodes(block: Block) -> Iterator[Node]:
    """The block's nodes and those of branches, in order of execution."""
    for node in block.nodes:
        for branch in node.branches:
            yield from all_nodes(branch)
        yield node


def reads(node: Node) -> set[str]:
    """Every name the node needs, its branches' included."""
    names = {name for name in node.inputs if name}
    for branch in node.branches:
        names.update(branch.outputs, *(reads(inner) for inner in branch.nodes))
    return names


def _block(graph: GraphProto, opset: int, names: dict[str, NodeProto]) -> Block:
    outputs = tuple(value.name for value in graph.output)
    nodes = [_node(proto, opset, names) for proto in graph.node]
    needed, kept = set(outputs), []
    for node in reversed(nodes):
        if needed & set(node.outputs):
            needed |= reads(node)
            kept.append(node)
    return Block(tuple(reversed(kept)), outputs)


def _node(proto: NodeProto, opset: int, names: dict[str, NodeProto]) -> Node:
    op = qualified_op(proto)
    name = proto.name
    if not name or name in names:
        name = f"{name or op.rpartition('.')[2].lower()}_{len(names)}"
    names[name] = proto
    attributes = {entry.name: helper.get_attribute_value(entry) for entry in proto.attribute}
    plain = {key: _plain(value) for key, value in attributes.items() if not isinstance(value, GraphProto)}
    branches: tuple[Block, ...] = ()
    if op == "If":
        branches = tuple(_block(attributes[key], opset, names) for key in ("then_branch", "else_branch"))
    return Node(op, name, tuple(proto.input), tuple(proto.output), plain, opset, branches, _scope(proto))


def _scope(proto: NodeProto) -> str:
    """The last but one of the names in "['', 'layer1', 'layer1.0', 'conv2d_1']"."""
    listed = next((entry.value for entry in proto.metadata_props if entry.key == _SCOPES), "")
    return next(iter(re.findall("'([^']*)'", listed)[-2:-1]), "")


def _plain(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _shape(value: Any) -> tuple[int | None, ...] | None:
    kind = value.type.tensor_type
    if not kind.HasField("shape"):
        return None
    return tuple(size.dim_value if size.dim_value > 0 else None for size in kind.shape.dim)


def _array(tensor: TensorProto, path: str) -> np.ndarray:
    try:
        return numpy_helper.to_array(tensor)
    except (ValueError, TypeError) as error:
        raise UserError(f"{path}: tensor '{tensor.name}' is damaged ({one_line(error)}); export it again") from error
