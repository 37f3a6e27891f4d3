"""The model's own graph without its weights, and the weights put back into it.

A skeleton is a serialised ModelProto. The data of each initializer that lives in a state_dict is stripped (name, type
and dims stay), and a metadata entry tells the state's name of each, as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
from onnx import ModelProto, TensorProto, helper

from gfcompile.errors import ContractError, UserError
from gfcompile.frontend.onnx.read import graphs_in

STATE_KEY = "gfcompile.state"
_DATA_FIELDS = (
    "raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data",
    "external_data", "data_location",
)  # fmt: skip


def strip(model: ModelProto, state_names: Mapping[str, str]) -> bytes:
    """A skeleton of the model; `state_names` maps initializers to names in a state_dict."""
    skeleton = ModelProto()
    skeleton.CopyFrom(model)
    for graph in graphs_in(skeleton.graph):
        for tensor in graph.initializer:
            if tensor.name in state_names:
                for data in _DATA_FIELDS:
                    tensor.ClearField(data)
    skeleton.metadata_props.add(key=STATE_KEY, value=json.dumps(dict(state_names)))
    return skeleton.SerializeToString()


def fill(skeleton: bytes, state: Mapping[str, np.ndarray]) -> ModelProto:
    """The whole model again, with the weights of `state`."""
    model = ModelProto.FromString(skeleton)
    entries = {entry.key: entry.value for entry in model.metadata_props}
    if STATE_KEY not in entries:
        raise ContractError(f"fill: the skeleton has no '{STATE_KEY}' entry")
    state_names = json.loads(entries.pop(STATE_KEY))
    del model.metadata_props[:]
    helper.set_model_props(model, entries)
    for graph in graphs_in(model.graph):
        for tensor in graph.initializer:
            if tensor.name in state_names:
                _fill_tensor(tensor, state_names[tensor.name], state)
    return model


def _fill_tensor(tensor: TensorProto, name: str, state: Mapping[str, np.ndarray]) -> None:
    if name not in state:
        raise UserError(f"state: '{name}' is missing; use the state of the model the ONNX graph came from")
    array = np.asarray(state[name])
    if array.shape != tuple(tensor.dims):
        raise UserError(
            f"state: '{name}' has shape {_by_x(array.shape)} but the ONNX graph wants {_by_x(tuple(tensor.dims))};"
            " use the state of the model it came from"
        )
    kind = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type)).newbyteorder("<")
    tensor.raw_data = np.ascontiguousarray(array, kind).tobytes()


def _by_x(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"
