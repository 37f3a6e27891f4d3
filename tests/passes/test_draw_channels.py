"""draw_channels: of a weight's gradient, the drawn input channels; nothing else changes."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gfcompile.graph.crossing import Crossing
from gfcompile.optimizers import SGD
from gfcompile.passes import pipeline
from gfcompile.passes.clip_gradients import ClipGradients
from gfcompile.passes.draw_channels import DrawChannels
from gfcompile.settings.schema import Request
from gfcompile.step import Role, Step, Value
from tests.codegen.test_channel_kernels import touched
from tests.passes.test_clip_gradients import torch_clipped
from tests.passes.tiny import (
    NETWORK_INPUT,
    TIGHT,
    Network,
    applied,
    arguments,
    assert_close,
    assert_golden,
    assert_second_run_changes_nothing,
    duplicate,
    numbers,
    traced,
)

NAMES = [each.name for each in pipeline.FILTERING]
UP_TO_DRAWING = pipeline.FILTERING[: NAMES.index("draw_channels")]


class Geometries(nn.Module):
    """A convolution of every kind: grouped with groups drawn from, groups drawn whole, strided, 1x1."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Conv2d(3, 12, 3, padding=1)
        self.grouped = nn.Conv2d(12, 16, 3, padding=1, groups=2, bias=False)
        self.pairs = nn.Conv2d(16, 16, 3, stride=2, padding=1, groups=8)
        self.depthwise = nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False)
        self.pointwise = nn.Conv2d(16, 8, 1)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        for conv in (self.dense, self.grouped, self.pairs, self.depthwise, self.pointwise):
            x = conv(x).relu()
        return self.head(x.mean((2, 3)))


GROUPS = {name: part.groups for name, part in Geometries().named_children() if isinstance(part, nn.Conv2d)}


def step_of(model: nn.Module, shape: tuple[int, ...], **request: object) -> Step:
    return traced(model, shape, Request(**request))  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=[False, True], ids=["filtered", "exact"])
def geometries(request: pytest.FixtureRequest) -> Step:
    return step_of(Geometries(), (2, 3, 9, 8), sparse={"*": 0.3}, exact=request.param)


def drawn(step: Step, parameter: str) -> np.ndarray:
    """Where the gradient of a parameter is computed."""
    layer = parameter.partition(".")[0]
    shape = list(step.tensors[parameter].shape)
    if layer not in step.plan.draws() or len(shape) != 4:
        return np.ones(shape, bool)
    return touched(shape, GROUPS.get(layer, 1), np.array(step.plan.draws()[layer].spread()))


@pytest.mark.parametrize("exact", [False, True], ids=["filtered", "exact"])
def test_takes_the_input_and_spreads_the_gradient(exact: bool) -> None:
    step = step_of(Network(), NETWORK_INPUT, layers=1, sparse={"*": 0.5}, exact=exact)
    step = applied(step, *UP_TO_DRAWING)
    kind = "exact" if exact else "filtered"
    assert_golden(f"draw_channels.{kind}.before", step)
    assert_golden(f"draw_channels.{kind}.after", DrawChannels().run(step))
    assert step.inputs[-1] == Value(Role.CHANNELS, "conv")
    assert_second_run_changes_nothing(DrawChannels(), step)


def test_dense_plans_have_no_site() -> None:
    step = applied(step_of(Network(), NETWORK_INPUT, layers=1), *UP_TO_DRAWING)
    assert_second_run_changes_nothing(DrawChannels(), step)


class Scaled(nn.Module):
    """A convolution with two more parameters of four axes beside its kernel, and a module of two kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.pair = nn.Conv2d(3, 8, 3, padding=1), nn.Module()
        self.conv.gain, self.conv.shift = (nn.Parameter(torch.ones(1, 8, 1, 1)) for _ in range(2))
        self.pair.narrow = nn.Parameter(torch.ones(4, 8, 3, 3))
        self.pair.wide = nn.Parameter(torch.ones(16, 4, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        x = (self.conv(x) * self.conv.gain + self.conv.shift).relu()
        x = nn.functional.conv2d(nn.functional.conv2d(x, self.pair.narrow).relu(), self.pair.wide)
        return x.mean((2, 3))


@pytest.mark.slow
@pytest.mark.parametrize("exact", [False, True], ids=["filtered", "exact"])
def test_kernels_go_by_their_names(exact: bool) -> None:
    step = step_of(Scaled(), (2, 3, 9, 9), sparse={"*": 0.4}, exact=exact)
    before = numbers(applied(duplicate(step), *UP_TO_DRAWING))
    after = numbers(applied(duplicate(step), *UP_TO_DRAWING, DrawChannels()))
    for value, expected in before.items():
        is_drawn = value == Value(Role.GRADIENT, "conv.weight")
        mask = drawn(step, value.name) if is_drawn else np.array(True)
        assert_close(np.where(mask, expected, 0), after[value], 1e-9, str(value))
    assert step.plan.undrawn == (("pair", "its module has several kernels, each with an input of its own"),)


@pytest.mark.slow
def test_the_drawn_part_of_every_gradient(geometries: Step) -> None:
    """And all of the others, after drawing and after every pass behind it."""
    before = numbers(applied(duplicate(geometries), *UP_TO_DRAWING))
    for passes in (
        [*UP_TO_DRAWING, DrawChannels()],
        [*pipeline.FILTERING],
        pipeline.gradient_passes(calculus=False),
        pipeline.gradient_passes(),
    ):
        after = numbers(applied(duplicate(geometries), *passes))
        assert before.keys() == after.keys()
        for value, expected in before.items():
            mask = drawn(geometries, value.name) if value.role is Role.GRADIENT else np.array(True)
            assert_close(np.where(mask, expected, 0), after[value], 1e-9, str(value))
            assert not np.any(after[value].numpy()[~np.broadcast_to(mask, expected.shape)])


def test_only_drawn_channels_cross(geometries: Step) -> None:
    """No float tensor is kept but x or x_tilde of the drawn channels, and what the head and the loss read."""
    step = applied(duplicate(geometries), *pipeline.gradient_passes())
    floats = [node.meta["val"] for node in Crossing(step).saved() if node.meta["val"].is_floating_point()]
    counts = [value.shape[3] for value in floats if value.dim() == 4]
    assert sorted(counts) == sorted(draw.count for draw in step.plan.draws().values())


def test_an_update_touches_nothing_else(geometries: Step) -> None:
    """Neither weight nor momentum of what is not drawn, in spite of weight decay."""
    optimizer = SGD(momentum=0.9, weight_decay=0.1)
    step = applied(duplicate(geometries), *pipeline.training_passes(optimizer))
    after = numbers(step)
    gradients = numbers(applied(duplicate(geometries), *pipeline.gradient_passes()))
    for value, found in after.items():
        if value.role is not Role.PARAMETER:
            continue
        name, mask = value.name, drawn(geometries, value.name)
        old = geometries.tensors[name].double()
        momentum = state_of(step, f"momentum_buffer/{name}")
        velocity = 0.9 * momentum + gradients[Value(Role.GRADIENT, name)] + 0.1 * old
        assert_close(np.where(mask, old - 0.125 * velocity, old), found, TIGHT[torch.float64], name)
        kept = after[Value(Role.OPTIMIZER, f"momentum_buffer/{name}")]
        assert_close(np.where(mask, velocity, momentum), kept, TIGHT[torch.float64], name)


def state_of(step: Step, name: str) -> Tensor:
    index = step.inputs.index(Value(Role.OPTIMIZER, name))
    packed = arguments(step, torch.float64)[index]
    layout = step.layouts.get(step.inputs[index].parameter)
    return packed if layout is None else layout.unpack(packed)


@pytest.mark.parametrize("clip", [ClipGradients(norm=0.5), ClipGradients(value=0.01)], ids=["norm", "value"])
def test_clipping_reads_the_drawn_part(geometries: Step, clip: ClipGradients) -> None:
    step = applied(duplicate(geometries), *pipeline.FILTERING)
    before = {value.name: tensor for value, tensor in numbers(step).items() if value.role is Role.GRADIENT}
    expected = torch_clipped(clip, before)
    assert any(not torch.equal(before[name], expected[name]) for name in before)
    found = numbers(clip.run(step))
    for name, tensor in expected.items():
        assert_close(tensor, found[Value(Role.GRADIENT, name)], TIGHT[torch.float64], name)
    assert_second_run_changes_nothing(clip, step)
