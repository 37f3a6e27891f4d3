"""The model itself as ONNX, without the numbers that training changes: `frontend.onnx.write_back.fill` puts them in."""

from __future__ import annotations

import json
from collections.abc import Collection

from onnx import TensorProto, numpy_helper
from torch import Tensor

from gfcompile.export.emitter import TYPES, Value
from gfcompile.export.model import make_model, name_results
from gfcompile.export.writer import GraphWriter
from gfcompile.frontend.onnx.write_back import STATE_KEY
from gfcompile.step import Role, Step

INTERNAL = "/"  # in front of values between nodes, so that no name of a weight is taken


def write_skeleton(step: Step, state_dict: Collection[str]) -> bytes:
    """The traced prediction graph in standard operators, its tensors as initializers under their own names.

    Those that `state_dict` names have a type and a shape but no data; other buffers and constants have theirs.
    """
    weights = {value.name for value in step.inputs if value.role is not Role.INPUT}
    values = {
        node: Value.of(_free(value.name.replace("x", "input", 1), weights), node.meta["val"])
        if value.role is Role.INPUT
        else Value.of(value.name, node.meta["val"])
        for node, value in zip(step.placeholders(), step.inputs, strict=True)
    }
    outputs = [_free(value.name, weights) for value in step.outputs]
    writer = GraphWriter(name_results(step, outputs), inline=True, prefix=INTERNAL)
    model = make_model("the trained model", writer, step, values, outputs)
    doors = [door for door in model.graph.input if door.name not in weights]
    del model.graph.input[:]
    model.graph.input.extend(doors)
    read = {name for node in model.graph.node for name in node.input}
    tensors = [value for value in values.values() if value.name in weights & read]
    for value in tensors:
        empty = TensorProto(name=value.name, data_type=TYPES[value.dtype], dims=value.shape)
        is_trained = value.name in state_dict
        model.graph.initializer.append(empty if is_trained else _with_data(step.tensors[value.name], value.name))
    names = {value.name: value.name for value in tensors if value.name in state_dict}
    model.metadata_props.add(key=STATE_KEY, value=json.dumps(names))
    return bytes(model.SerializeToString())


def _with_data(tensor: Tensor, name: str) -> TensorProto:
    return numpy_helper.from_array(tensor.contiguous().numpy(), name)


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name
