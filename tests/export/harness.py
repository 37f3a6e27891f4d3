"""A graph in eager PyTorch and, written as ONNX, in onnxruntime: the two must agree."""

from __future__ import annotations

import json
import operator
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from torch import Tensor, fx

from gfcompile.export.model import write_graph
from gfcompile.export.writer import UNTRANSLATED
from gfcompile.step import STATE, Role, Step, Value

onnxruntime.set_default_logger_severity(3)  # it warns of every constant that no node reads
LR = 0.125
CLASSES = 2  # of a target that is class indices: every network has as many


@dataclass(frozen=True)
class Case:
    """One call of an operator. `read` are the results that the graph returns; None: all of them."""

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    read: tuple[int, ...] | None = None
    tolerance: float = 1e-5

    def __str__(self) -> str:
        shapes = ["x".join(map(str, arg.shape)) if isinstance(arg, Tensor) else str(arg) for arg in self.args]
        return f"{self.target}({', '.join(shapes)})".replace(" ", "")[:120]


def step_of(case: Case) -> Step:
    """A step whose graph is this one call; the writer reads no plan."""
    graph, inputs = fx.Graph(), []

    def door(arg: Any) -> Any:
        if isinstance(arg, Tensor):
            node = graph.placeholder(f"in{len(inputs)}")
            node.meta["val"] = arg
            inputs.append(node)
            return node
        return type(arg)(map(door, arg)) if isinstance(arg, list | tuple) else arg

    with torch.no_grad():
        found = case.target(*case.args, **case.kwargs)
    args = tuple(door(arg) for arg in case.args)
    kwargs = {name: door(arg) for name, arg in case.kwargs.items()}
    call = graph.call_function(case.target, args, kwargs)
    call.meta["val"] = found
    results = [call]
    if not isinstance(found, Tensor):
        given = [index for index, value in enumerate(found) if value is not None]
        results = [graph.call_function(operator.getitem, (call, i)) for i in case.read or given]
        for node in results:
            node.meta["val"] = found[node.args[1]]
    graph.output(tuple(results))
    names = [Value(Role.INPUT, node.name) for node in inputs]
    outputs = [Value(Role.OUTPUT, f"out{index}") for index in range(len(results))]
    return Step(fx.GraphModule({}, graph), names, outputs, None, {})


def assert_agrees(case: Case) -> None:
    step = step_of(case)
    tensors = [node.meta["val"] for node in step.placeholders()]
    model = checked(step)
    assert untranslated(model) == []
    expected = [node.meta["val"] for node in step.results()]
    assert_same(expected, run(model, tensors), case.tolerance, [str(case)] * len(expected))


def checked(step: Step) -> onnx.ModelProto:
    """The step as ONNX, after everything that onnx itself checks."""
    model = write_graph(step, "test")
    onnx.checker.check_model(model, full_check=True)
    return model


def untranslated(model: onnx.ModelProto) -> list[str]:
    """What the file says of itself, which must be what its nodes say."""
    entries = {entry.key: json.loads(entry.value) for entry in model.metadata_props}
    named = entries.get(UNTRANSLATED, [])
    assert bool(named) == any(node.domain == UNTRANSLATED for node in model.graph.node)
    return named


def run(model: onnx.ModelProto, tensors: Sequence[Tensor]) -> list[np.ndarray]:
    """By onnxruntime, as written: without its own rewriting of the graph."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    names = [door.name for door in session.get_inputs()]
    return session.run(None, dict(zip(names, (tensor.numpy() for tensor in tensors), strict=True)))


def assert_same(
    expected: Sequence[Tensor], found: Sequence[np.ndarray], tolerance: float, names: Sequence[object]
) -> None:
    """Type, shape, and the norm of the difference relative to that of what is expected."""
    for wanted, got, name in zip(expected, found, names, strict=True):
        truth = wanted.numpy()
        assert got.dtype == truth.dtype, f"{name}: {got.dtype} is not {truth.dtype}"
        assert got.shape == truth.shape, f"{name}: {got.shape} is not {truth.shape}"
        size = np.linalg.norm(truth.astype(np.float64))
        distance = np.linalg.norm(truth.astype(np.float64) - got.astype(np.float64))
        assert distance <= tolerance * size, f"{name}: {distance:.2e} of {size:.2e}"


def assert_step_agrees(step: Step, tolerance: float = 1e-4) -> None:
    """The whole graph on the same arguments."""
    arguments = arguments_of(step)
    with torch.no_grad():
        expected = fx.Interpreter(step.body).run(*arguments)
    model = checked(step)
    assert untranslated(model) == []
    assert_same(expected, run(model, arguments), tolerance, step.outputs)


def arguments_of(step: Step) -> list[Tensor]:
    """Weights are the step's own; the rest depends on its name alone."""
    return [_argument(step, node, value) for node, value in zip(step.placeholders(), step.inputs, strict=True)]


def _argument(step: Step, node: fx.Node, value: Value) -> Tensor:
    like = node.meta["val"]
    generator = torch.Generator().manual_seed(zlib.crc32(str(value).encode()))
    if value.name in step.tensors and value.role is not Role.OPTIMIZER:
        tensor = step.tensors[value.name]
        layout = step.layouts.get(value.name) if value.role in STATE else None
        return tensor if layout is None else layout.pack(tensor)
    if value.role is Role.LR:
        return torch.tensor(LR)
    if not like.dtype.is_floating_point:
        return torch.randint(0, CLASSES, like.shape, generator=generator, dtype=like.dtype)
    values = torch.randn(like.shape, generator=generator)
    return 1 + values.abs() if value.role in (Role.OPTIMIZER, Role.SAMPLE_WEIGHT) else values
