"""The bytes of a file as an ONNX model, normalised: no local functions, every constant an initializer of its own.

before ==> after:
    y = LocalFunction(x)                 ==>  the function's nodes
    c = Constant<value>()                ==>  initializer c
    b2 = Identity(b1), b1 initializer    ==>  initializer b2, a copy

The last undoes what PyTorch's TorchScript exporter does to initializers that happen to be equal, such as the zero
biases of fresh batch norms: as one tensor they could only be trained together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx
import onnx.external_data_helper
import onnx.inliner
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper

from gfcompile.errors import UserError
from gfcompile.frontend.foreign import MalformedError, one_line

OLDEST_OPSET = 7
_MOST_NODES, _DEEPEST_FUNCTIONS = 200_000, 100
_SPARE_BYTES = 1 << 26
_STANDARD_DOMAINS = ("", "ai.onnx")


def read_model(path: str) -> ModelProto:
    """The normalised model in the file, its external data loaded."""
    model = ModelProto.FromString(Path(path).read_bytes())
    if not model.graph.node or not model.opset_import:
        raise UserError(f"{path}: holds no ONNX graph; export the model again")
    _load_external_data(model, path)
    if opset_of(model) < OLDEST_OPSET:
        raise UserError(
            f"{path}: is written in opset {opset_of(model)}; export it again with opset {OLDEST_OPSET} or later"
        )
    if model.functions:
        _check_inlined(model, path)
        model = onnx.inliner.inline_local_functions(model)
    for graph in graphs_in(model.graph):
        _hoist_constants(graph)
        _separate_copies(graph)
    return model


def opset_of(model: ModelProto) -> int:
    """The version of ONNX's own operators the model is written in."""
    return max((entry.version for entry in model.opset_import if entry.domain in _STANDARD_DOMAINS), default=0)


def qualified_op(node: NodeProto) -> str:
    """The operator's name, with its domain unless it is ONNX's own."""
    return node.op_type if node.domain in _STANDARD_DOMAINS else f"{node.domain}.{node.op_type}"


def graphs_in(graph: GraphProto) -> Iterator[GraphProto]:
    """The graph and every graph inside its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from graphs_in(attribute.g)


def _check_inlined(model: ModelProto, path: str) -> None:
    """Functions of functions may stand for more nodes than there is memory; count before they are written out."""
    bodies = {(function.domain, function.name): function.node for function in model.functions}
    sizes: dict[tuple[str, str], int] = {}

    def count(nodes: Iterable[NodeProto]) -> int:
        return sum(sizes.get((node.domain, node.op_type), 1) for node in nodes)

    for _ in range(_DEEPEST_FUNCTIONS):
        before = dict(sizes)
        sizes = {name: min(count(nodes), _MOST_NODES + 1) for name, nodes in bodies.items()}
        if sizes == before:
            break
    if sizes != before or count(model.graph.node) > _MOST_NODES:
        raise UserError(f"{path}: its functions stand for more than {_MOST_NODES} nodes; export it without functions")


def _check_external(model: ModelProto, path: str) -> None:
    """Many tensors may refer to the same bytes; together they may not ask for much more than there are."""
    folder = Path(path).resolve().parent
    wanted, files = 0, set()
    for graph in graphs_in(model.graph):
        for tensor in graph.initializer:
            words = {entry.key: entry.value for entry in tensor.external_data}
            if words:
                files.add(words.get("location", ""))
                wanted += int(words.get("length", 0))
    room = sum((folder / file).stat().st_size for file in files if (folder / file).is_file())
    if wanted > 2 * room + _SPARE_BYTES or Path(path).name in files:
        raise UserError(f"{path}: refers to more weights than its files hold; export it again")


def _load_external_data(model: ModelProto, path: str) -> None:
    try:
        _check_external(model, path)
        onnx.external_data_helper.load_external_data_for_model(model, str(Path(path).resolve().parent))
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        locations = {
            entry.value
            for tensor in model.graph.initializer
            for entry in tensor.external_data
            if entry.key == "location"
        }
        files = ", ".join(f"'{location}'" for location in sorted(locations))
        raise UserError(
            f"{path}: its weights in {files} cannot be read ({one_line(error)}); keep them in the same folder"
        ) from error


def _hoist_constants(graph: GraphProto) -> None:
    kept = []
    for node in graph.node:
        if qualified_op(node) == "Constant" and (tensor := _constant_value(node)) is not None:
            tensor.name = node.output[0]
            graph.initializer.append(tensor)
        else:
            kept.append(node)
    _replace_nodes(graph, kept)


def _constant_value(node: NodeProto) -> TensorProto | None:
    """The node's value as a tensor; None for strings and sparse tensors, which only an unknown operator would read."""
    attribute = node.attribute[0]
    if attribute.name == "value":
        return attribute.t
    kinds = {
        "value_float": TensorProto.FLOAT,
        "value_floats": TensorProto.FLOAT,
        "value_int": TensorProto.INT64,
        "value_ints": TensorProto.INT64,
    }
    if attribute.name not in kinds:
        return None
    value = helper.get_attribute_value(attribute)
    shape = [len(value)] if attribute.name.endswith("s") else []
    return helper.make_tensor("", kinds[attribute.name], shape, value if shape else [value])


def _separate_copies(graph: GraphProto) -> None:
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    results = {output.name for output in graph.output}
    kept = []
    room = _SPARE_BYTES + sum(tensor.ByteSize() for tensor in tensors.values())
    for node in graph.node:
        if qualified_op(node) == "Identity" and node.input[0] in tensors and node.output[0] not in results:
            room -= tensors[node.input[0]].ByteSize()
            if room < 0:
                raise MalformedError("its copies of constants are larger than what they are copies of")
            copy = graph.initializer.add()
            copy.CopyFrom(tensors[node.input[0]])
            copy.name = node.output[0]
            tensors[copy.name] = copy
        else:
            kept.append(node)
    _replace_nodes(graph, kept)


def _replace_nodes(graph: GraphProto, nodes: list[NodeProto]) -> None:
    copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)
