"""What the tests of ONNX in share: models from a few lines of ONNX text, and ONNX Runtime as the truth."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import torch
from onnx import ModelProto, TensorProto, helper, numpy_helper
from torch import Tensor, nn

IR_VERSION = 10


def model_of(lines: str, opset: int = 17, **values) -> ModelProto:
    """One node a line. A value that is a tuple is the shape of an input, an array is an initializer; the last line's
    results are the outputs."""
    nodes = [onnx.parser.parse_node(line) for line in map(str.strip, lines.strip().splitlines()) if line]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, value)
        for name, value in values.items()
        if isinstance(value, tuple)
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in nodes[-1].output]
    constants = [
        numpy_helper.from_array(np.asarray(value), name)
        for name, value in values.items()
        if not isinstance(value, tuple)
    ]
    graph = helper.make_graph(nodes, "test", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=IR_VERSION)
    return onnx.shape_inference.infer_shapes(model)  # the outputs' types


def random(*shape: int) -> np.ndarray:
    """Values in (-2, 2), the same for a shape on every run."""
    return np.random.default_rng(sum(shape)).uniform(-2, 2, shape).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def reference(model: ModelProto | str, *inputs: Tensor) -> list[np.ndarray]:
    """What ONNX Runtime computes, with its graph optimisations off."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    source = model if isinstance(model, str) else model.SerializeToString()
    session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    return session.run(None, {name: tensor.numpy() for name, tensor in zip(names, inputs, strict=True)})


def export(module: nn.Module, x: Tensor, path: str, dynamo: bool, **options) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (x,), path, dynamo=dynamo, verbose=False, **options)
    return path
