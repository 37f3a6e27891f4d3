"""Whole graphs: every dump is valid ONNX, and runs in onnxruntime with the numbers of eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from gfcompile.frontend.losses import resolve_loss
from gfcompile.frontend.survey import survey
from gfcompile.frontend.trace import forward_step, trace_forward, trace_training, working_copy
from gfcompile.optimizers import SGD, AdamW, Optimizer, RMSprop
from gfcompile.passes import pipeline
from gfcompile.plan import make_plan
from gfcompile.settings.schema import Request
from gfcompile.step import Role, Step
from tests.export.harness import assert_step_agrees, checked, untranslated
from tests.models import randomise_statistics
from tests.models.mobilenet_v3 import mobilenet_v3_like
from tests.models.resnet import resnet18
from tests.models.zoo import INPUTS, ZOO
from tests.passes import nets
from tests.passes.tiny import duplicate, filtered
from tests.selection import often

RUN_AFTER = {"traced", "filter", "sink", "hoist"}  # and after the last pass; the others are checked only
OPTIMIZERS: dict[str, Optimizer] = {
    "plain": SGD(),
    "grouped": SGD(momentum=0.9, weight_decay=1e-3, dampening=0.1),
    "separable": AdamW(),
    "concat": RMSprop(momentum=0.9, centered=True),
    "dilated": SGD(momentum=0.9, nesterov=True, clip_norm=1.0),
}
STATISTICS = {"conv_head", "separable", "squeeze_excite"}  # networks trained with those of the batch


class Visit:
    """Looks at the graph after every pass."""

    def __init__(self, passes: list[Any], run_after: set[str] = RUN_AFTER) -> None:
        self.last, self.run_after = len(passes), run_after
        self.seen: list[str] = []

    def __call__(self, index: int, name: str, step: Step) -> None:
        self.seen.append(name)
        if name in self.run_after or index == self.last:
            assert_step_agrees(step)
        else:
            assert untranslated(checked(step)) == []


def visited(step: Step, passes: list[Any], run_after: set[str] = RUN_AFTER) -> Step:
    visit = Visit(passes, run_after)
    done = pipeline.run(step, passes, visit)
    assert visit.seen == ["traced", *(each.name for each in passes)]
    return done


def both(model: nn.Module, shape: tuple[int, ...], layers: int, loss: str, batchnorm: str) -> tuple[Step, Step]:
    """The training step as traced, and the prediction step."""
    module, inputs, resolved = working_copy(model), (torch.zeros(shape),), resolve_loss(loss)
    forward = trace_forward(module, inputs)
    request = Request(layers=layers, r={"*": 2}, batchnorm=batchnorm)
    plan = make_plan(survey(forward, module), request)
    step = trace_training(module, inputs, resolved.target_like(working_copy(model)(*inputs)), resolved, plan)
    return step, forward_step(forward, plan, inputs, step.updated_buffers)


@pytest.mark.slow
@pytest.mark.parametrize("name", often(ZOO, ["grouped", "separable"]))
def test_training_and_prediction_of_the_zoo(name: str) -> None:
    loss, batchnorm = "mse" if name == "regression" else "cross_entropy", "train" if name in STATISTICS else "eval"
    step, forward = both(ZOO[name](), INPUTS[name], 2, loss, batchnorm)
    visited(step, pipeline.training_passes(OPTIMIZERS.get(name, SGD(momentum=0.9))))
    visited(forward, pipeline.prediction_passes(), {"traced"})


@pytest.mark.slow
def test_the_program_of_gradients() -> None:
    step, _ = both(ZOO["plain"](), INPUTS["plain"], 3, "cross_entropy", "eval")
    done = visited(step, pipeline.gradient_passes())
    assert Role.GRADIENT in {value.role for value in done.outputs}


NETS: dict[str, Callable[[], nn.Module]] = {
    "residual": lambda: nets.with_head(
        nets.conv(3), nets.Residual(nets.conv(), nn.BatchNorm2d(4)), nets.conv(stride=2)
    ),
    "gates": lambda: nets.with_head(
        nets.conv(3), nets.SqueezeExcite(), nets.SpatialGate(), nets.LayerScale(), nets.conv()
    ),
    "dense": lambda: nets.with_head(nets.conv(3), nets.Dense(nn.Hardswish(), nets.conv()), nets.conv(8), nn.GELU()),
    "branches": lambda: nets.with_head(
        nets.conv(3),
        nets.Branches(lambda x: list(x.chunk(2, 1)), nets.conv(2, 2), nets.Product(nets.conv(2, 2), nn.Sigmoid())),
        nn.MaxPool2d(3, 2, 1, ceil_mode=True),
        nets.conv(),
        pool=nn.AvgPool2d(3, 2, 1, ceil_mode=True),
    ),
    "up": lambda: nets.with_head(
        nets.conv(3), nn.MaxPool2d(2), nn.ConvTranspose2d(4, 4, 3, 2, 1, 1), nn.GroupNorm(2, 4), nn.SiLU(), nets.conv()
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
def test_every_way_in_which_gradients_meet(name: str) -> None:
    visited(filtered(NETS[name](), nets.SHAPE), pipeline.training_passes(SGD(momentum=0.9)))


WIDTHS: dict[Callable[..., nn.Module], float] = {resnet18: 16, mobilenet_v3_like: 0.5}


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    often([resnet18, mobilenet_v3_like], []),
)
def test_networks_as_people_train_them(make: Callable[..., nn.Module]) -> None:
    model = make(10, width=WIDTHS[make])
    step, _ = both(randomise_statistics(model, seed=0), (2, 3, 64, 64), 5, "cross_entropy", "eval")
    visited(step, pipeline.training_passes(SGD(momentum=0.9)), {"filter", "hoist"})


@pytest.mark.slow
def test_equal_graphs_give_equal_files() -> None:
    step = filtered(NETS["residual"](), nets.SHAPE)
    one, other = (
        checked(pipeline.run(duplicate(step), pipeline.FILTERING)).SerializeToString(deterministic=True) for _ in "ab"
    )
    assert one == other
