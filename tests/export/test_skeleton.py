"""The model without its weights: names, constants, standard operators only."""

from __future__ import annotations

import json

import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from gfcompile.export.skeleton import write_skeleton
from gfcompile.export.writer import UNTRANSLATED
from gfcompile.frontend.onnx.write_back import STATE_KEY, fill
from gfcompile.frontend.survey import survey
from gfcompile.frontend.trace import forward_step, trace_forward, working_copy
from gfcompile.ops import gf
from gfcompile.plan import make_plan
from gfcompile.settings.schema import Request
from gfcompile.step import Role, Step, Value
from tests.export.aten_cases import real, whole
from tests.export.harness import assert_same, run


class Awkward(nn.Module):
    """Weights called like the graph's own values, one that nobody reads, a constant, a resize, two results."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.input = nn.Parameter(real(4, 1, 1))
        self.relu = nn.Parameter(real(4, 1, 1))
        self.unread = nn.Parameter(real(2))
        self.register_buffer("output", real(4, 1, 1))
        self.register_buffer("derived", real(4, 1, 1) + 1, persistent=False)  # not in the state_dict

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.relu(self.conv(x)) * self.input + self.relu * self.derived
        larger = F.interpolate(y, scale_factor=2.0, mode="bilinear")
        return larger * self.output + torch.tensor([1.0, 2.0, 3.0, 4.0]).view(4, 1, 1), y.mean((2, 3))


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Conv2d(3, 4, 1), nn.Conv2d(2, 4, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.left(x) + self.right(y)


def skeleton_of(module: nn.Module, *inputs: Tensor) -> onnx.ModelProto:
    traced = working_copy(module)
    program = trace_forward(traced, inputs)
    plan = make_plan(survey(program, traced), Request(layers=1))
    return onnx.ModelProto.FromString(
        write_skeleton(forward_step(program, plan, inputs, frozenset()), module.state_dict())
    )


def filled(skeleton: onnx.ModelProto, module: nn.Module) -> onnx.ModelProto:
    state = {name: tensor.numpy() for name, tensor in module.state_dict().items()}
    model = fill(skeleton.SerializeToString(), state)
    onnx.checker.check_model(model, full_check=True)
    return model


@pytest.mark.parametrize(
    ("make", "inputs"), [(Awkward, (real(2, 3, 6, 5),)), (TwoInputs, (real(2, 3, 4, 4), real(2, 2, 4, 4)))]
)
def test_filled_it_computes_what_the_module_does(make: type[nn.Module], inputs: tuple[Tensor, ...]) -> None:
    module = make().eval()
    with torch.no_grad():
        expected = module(*inputs)
    model = filled(skeleton_of(module, *inputs), module)
    outputs = expected if isinstance(expected, tuple) else (expected,)
    assert_same(outputs, run(model, inputs), 1e-5, outputs)


def test_weights_keep_their_names_and_others_give_way() -> None:
    skeleton = skeleton_of(Awkward(), real(2, 3, 6, 5))
    assert [door.name for door in skeleton.graph.input] == ["input_"]
    assert [door.name for door in skeleton.graph.output] == ["output_", "output1"]
    names = json.loads({entry.key: entry.value for entry in skeleton.metadata_props}[STATE_KEY])
    weights = ["conv.weight", "conv.bias", "input", "relu", "output"]
    assert names == {name: name for name in weights}
    has_data = {tensor.name: bool(tensor.raw_data) for tensor in skeleton.graph.initializer}
    assert {name: has_data[name] for name in weights} == dict.fromkeys(weights, False)
    assert all(has_data[name] for name in has_data if name not in weights)
    assert has_data["derived"]
    assert {node.domain for node in skeleton.graph.node} == {""}
    assert not skeleton.functions


def test_several_inputs_are_numbered() -> None:
    skeleton = skeleton_of(TwoInputs(), real(2, 3, 4, 4), real(2, 2, 4, 4))
    assert [door.name for door in skeleton.graph.input] == ["input0", "input1"]


def test_what_it_cannot_say_is_listed() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.eye(3)
    call = graph.call_function(torch.ops.aten.cholesky.default, (x,))
    call.meta["val"] = torch.eye(3)
    graph.output((call,))
    step = Step(fx.GraphModule({}, graph), [Value(Role.INPUT, "x")], [Value(Role.OUTPUT, "output")], None, {})
    skeleton = onnx.ModelProto.FromString(write_skeleton(step, ()))
    onnx.checker.check_model(skeleton, full_check=True)
    entries = {entry.key: json.loads(entry.value) for entry in skeleton.metadata_props}
    assert entries[UNTRANSLATED] == ["aten.cholesky.default"]
    assert [(node.domain, node.op_type) for node in skeleton.graph.node] == [(UNTRANSLATED, "cholesky")]


def test_our_operators_are_written_out() -> None:
    graph = fx.Graph()
    x, table = real(24), whole(12, 1, below=25).int()
    nodes = [graph.placeholder(name) for name in ("x", "table")]
    for node, tensor in zip(nodes, (x, table), strict=True):
        node.meta["val"] = tensor
    call = graph.call_function(gf.move.default, ([nodes[0]], nodes[1], [3, 4]))
    call.meta["val"] = gf.move([x], table, [3, 4])
    graph.output((call,))
    inputs = [Value(Role.INPUT, "x"), Value(Role.CONSTANT, "table")]
    step = Step(fx.GraphModule({}, graph), inputs, [Value(Role.OUTPUT, "output")], None, {"table": table})
    skeleton = onnx.ModelProto.FromString(write_skeleton(step, ()))
    assert not skeleton.functions
    assert {node.domain for node in skeleton.graph.node} == {""}
    assert_same([call.meta["val"]], run(filled(skeleton, nn.Module()), [x]), 1e-6, ["move"])
