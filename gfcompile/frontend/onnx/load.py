"""An ONNX file as a module: read, refuse what cannot be computed, find the weights, build."""

from __future__ import annotations

from dataclasses import dataclass

from onnx import TensorProto
from torch import nn

from gfcompile.errors import UserError
from gfcompile.frontend.foreign import one_line
from gfcompile.frontend.onnx.graph import Graph, parse
from gfcompile.frontend.onnx.module import build
from gfcompile.frontend.onnx.read import read_model
from gfcompile.frontend.onnx.weights import check_names, check_nodes, check_operators, check_types, find_weights
from gfcompile.frontend.onnx.write_back import strip

BATCH = 8  # where the file leaves the batch open


@dataclass(frozen=True)
class OnnxModel:
    """A file's module, the shape of its one input where the file tells it, and its graph without weights."""

    module: nn.Module
    example_shape: tuple[int, ...] | None
    skeleton: bytes


def load_onnx(path: str) -> OnnxModel:
    """Nothing in the file is executed: it is data for the table of operators."""
    try:
        return _load(path)
    except UserError:
        raise
    except Exception as error:  # a damaged graph can raise anything
        raise UserError(f"{path}: cannot be read as an ONNX model ({one_line(error)}); export it again") from error


def _load(path: str) -> OnnxModel:
    model = read_model(path)
    graph = parse(model, path)
    check_names(graph, path)
    check_operators(graph, path)
    _check_inputs(graph, path)
    weights = find_weights(graph)
    check_nodes(graph, weights, path)
    check_types(graph, weights, path)
    module, state_names = build(graph, weights)
    return OnnxModel(module, _example_shape(graph), strip(model, state_names))


def _check_inputs(graph: Graph, path: str) -> None:
    if not graph.inputs:
        raise UserError(f"{path}: takes no input; export a model that takes one batch tensor")
    first = graph.inputs[0]
    if first.element_type != TensorProto.FLOAT:
        kind = TensorProto.DataType.Name(first.element_type).lower()
        raise UserError(f"{path}: input '{first.name}' is of type {kind}; export the model with a float32 input")


def _example_shape(graph: Graph) -> tuple[int, ...] | None:
    """The batch may be open; nothing else is guessed."""
    if len(graph.inputs) != 1 or not graph.inputs[0].shape:
        return None
    batch, *sizes = graph.inputs[0].shape
    known = [size for size in sizes if size is not None]
    return (BATCH if batch is None else batch, *known) if len(known) == len(sizes) else None
