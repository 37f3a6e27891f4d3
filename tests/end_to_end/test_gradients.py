"""Gradients of filtered convolutions against the NumPy oracle, over every geometry: operator, graph, compiled step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gfcompile.frontend.losses import resolve_loss
from gfcompile.frontend.survey import survey
from gfcompile.frontend.trace import trace_forward, trace_training, working_copy
from gfcompile.geometry.convolution import ConvGeometry, why_reference_refuses
from gfcompile.passes import pipeline
from gfcompile.plan import make_plan
from gfcompile.settings.schema import Request
from gfcompile.step import Role, Step
from tests.end_to_end.branches import Branches, draw_geometries, example_batch, oracle_gradients, patches
from tests.geometries import Geometry, conv_geometries
from tests.lean import lean_compile
from tests.oracles import filtered_conv_gradients
from tests.selection import often
from tests.tolerances import FILTERED_GRADIENT, GRAPH_FLOAT64, assert_near

COMPAT = {"unbiased": None, "reference": "reference"}
MODES = tuple(COMPAT)
GRAPH_SETS = [(mode, seed) for mode in MODES for seed in range(5)]
OFTEN_GRAPHS = [("unbiased", 0), ("unbiased", 1), ("reference", 0)]  # the others with `make coverage`
GRAPH_COUNT = 20
COMPILED_SETS = [("unbiased", 100), ("unbiased", 101), ("reference", 102)]
OFTEN_COMPILED = [("unbiased", 100)]
COMPILED_COUNT = 10


def square(size: int, kernel: int, r: int, padding: int = 0, stride: int = 1, dilation: int = 1) -> Geometry:
    pair = ((kernel, kernel), (stride, stride), (padding, padding), (dilation, dilation))
    return Geometry(1, 2, 3, size, size, *pair, groups=1, r=r)


@pytest.mark.slow
@given(geometry=conv_geometries(), mode=st.sampled_from(MODES))
@example(square(7, kernel=3, r=2, padding=1), "unbiased")
@example(square(9, kernel=3, r=2, padding=4, dilation=4), "unbiased")  # d >= r: a dilated kernel on the patch grid
@example(square(8, kernel=3, r=2, padding=2, dilation=2), "reference")  # its dilated variant
@example(square(4, kernel=2, r=1, padding=1), "reference")  # the input would pool to one patch more than the output
@example(square(3, kernel=1, r=8, stride=3), "unbiased")  # a patch larger than the output
@settings(max_examples=60)
def test_operator_equals_the_oracle(geometry: Geometry, mode: str) -> None:
    """What `select` writes, run eagerly; refused is just what the oracle has no definition for."""
    check_operator(geometry, mode)


@pytest.mark.coverage
@given(geometry=conv_geometries(), mode=st.sampled_from(MODES))
@settings(max_examples=500)
def test_operator_equals_the_oracle_for_many_geometries(geometry: Geometry, mode: str) -> None:
    check_operator(geometry, mode)


def check_operator(geometry: Geometry, mode: str) -> None:
    random = np.random.default_rng(0)
    shapes = (geometry.input_shape, geometry.weight_shape, geometry.output_shape)
    x, w, gy = (random.normal(size=shape) for shape in shapes)
    arguments = geometry.conv_arguments
    refusal = why_reference_refuses(described(geometry), geometry.r) if mode == "reference" else None
    if refusal is not None:
        with pytest.raises(ValueError, match="reference"):
            filtered_conv_gradients(x, w, gy, r=geometry.r, mode=mode, **arguments)
        return
    expected = filtered_conv_gradients(x, w, gy, r=geometry.r, mode=mode, **arguments)
    lists = [list(arguments[key]) for key in ("stride", "padding", "dilation")]
    found = torch.ops.gf.filtered_convolution_backward(
        *map(torch.from_numpy, (gy, x, w)), *lists, geometry.groups, geometry.r, mode == "reference"
    )
    for name, value, wanted in zip(("gx", "gw", "gb"), found, expected, strict=True):
        assert_near(value, wanted, GRAPH_FLOAT64, name)


def described(geometry: Geometry) -> ConvGeometry:
    g = geometry
    return ConvGeometry(
        batch=g.batch,
        in_channels=g.in_channels,
        out_channels=g.out_channels,
        in_size=(g.height, g.width),
        out_size=g.output_shape[2:],
        kernel=g.kernel,
        **g.conv_arguments,
    )


@pytest.mark.slow
def test_drawn_sets_cover_the_space() -> None:
    """The sets below are only as good as what they hold."""
    drawn = [geometry for _, seed in OFTEN_GRAPHS for geometry in draw_geometries(GRAPH_COUNT, seed)]
    drawn += [geometry for _, seed in OFTEN_COMPILED for geometry in draw_geometries(COMPILED_COUNT, seed)]
    assert {g.r for g in drawn} == set(range(1, 9))
    assert {size for g in drawn for size in g.stride} == {1, 2, 3}
    assert {size for g in drawn for size in g.dilation} == {1, 2, 3, 4}
    assert {size for g in drawn for size in g.kernel} == set(range(1, 8))
    assert {_grouping(g) for g in drawn} == {"dense", "depthwise", "general", "multiplier"}
    assert any(g.kernel[0] != g.kernel[1] for g in drawn)
    assert any(g.padding == (0, 0) for g in drawn)
    assert any(g.r > max(g.output_shape[2:]) for g in drawn)
    assert min(min(g.height, g.width) for g in drawn) <= 2
    assert max(max(g.height, g.width) for g in drawn) >= 32


def _grouping(geometry: Geometry) -> str:
    if geometry.groups == 1:
        return "dense"
    if geometry.in_channels == geometry.groups:
        return "depthwise" if geometry.out_channels == geometry.groups else "multiplier"
    return "general"


@dataclass(frozen=True)
class Drawn:
    """A set of geometries as a model, its batch, and what the oracle says."""

    geometries: tuple[Geometry, ...]
    model: Branches
    batch: tuple[torch.Tensor, torch.Tensor]
    expected: dict[str, np.ndarray]
    undefined: set[str]

    @classmethod
    def make(cls, count: int, seed: int, mode: str) -> Drawn:
        geometries = draw_geometries(count, seed)
        model = Branches(geometries, seed)
        batch = example_batch(model, seed)
        return cls(geometries, model, batch, *oracle_gradients(model, geometries, *batch, mode))

    def compare(self, found: dict[str, np.ndarray], tolerance: float) -> None:
        assert set(found) == set(self.expected)
        for name, wanted in self.expected.items():
            geometry = self.geometries[int(name.split(".")[1])]
            assert_near(found[name], wanted, tolerance, f"{name} of {geometry}")

    def check_refusals(self, refusals: dict[str, str]) -> None:
        """Refused is exactly what the mode does not define, each with the reason its geometry gives."""
        reasons = {}
        for layer in self.undefined:
            geometry = self.geometries[int(layer.split(".")[1])]
            reasons[layer] = why_reference_refuses(described(geometry), geometry.r)
        assert refusals == reasons


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "seed"), often(GRAPH_SETS, OFTEN_GRAPHS))
def test_graph_equals_the_oracle(mode: str, seed: int) -> None:
    """Traced and rewritten by the filtering passes, executed by PyTorch in float64."""
    drawn = Drawn.make(GRAPH_COUNT, seed, mode)
    x, target = drawn.batch
    module, loss = working_copy(drawn.model), resolve_loss("mse")
    layers = survey(trace_forward(module, (x,)), module)
    plan = make_plan(layers, Request(train=("*",), r=patches(drawn.geometries), compat=COMPAT[mode]))
    step = pipeline.run(trace_training(module, (x,), target, loss, plan), pipeline.FILTERING)
    drawn.compare(_run_in_float64(step, x, target), GRAPH_FLOAT64)
    drawn.check_refusals({refusal.layer: refusal.reason for refusal in step.refusals})


def _run_in_float64(step: Step, x: torch.Tensor, target: torch.Tensor) -> dict[str, np.ndarray]:
    batch = {Role.INPUT: x, Role.TARGET: target, Role.SAMPLE_WEIGHT: torch.ones(len(x))}
    arguments = [batch[value.role] if value.role in batch else step.tensors[value.name] for value in step.inputs]
    results = step.run(*(argument.double() for argument in arguments))
    pairs = zip(step.outputs, results, strict=True)
    return {value.name: result.numpy() for value, result in pairs if value.role is Role.GRADIENT}


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "seed"), often(COMPILED_SETS, OFTEN_COMPILED))
def test_compiled_step_equals_the_oracle(mode: str, seed: int, tmp_path: Path) -> None:
    drawn = Drawn.make(COMPILED_COUNT, seed, mode)
    x, target = drawn.batch
    step = lean_compile(
        drawn.model,
        x,
        train="*",
        r=patches(drawn.geometries),
        compat=COMPAT[mode],
        loss="mse",
        out=tmp_path / "branches_step",
    )
    drawn.compare(step.gradients(x, target), FILTERED_GRADIENT)
    drawn.check_refusals(dict(step.refusals))
    convolutions = {f"branches.{index}.conv" for index in range(COMPILED_COUNT)}
    assert set(step.filtered_layers) & convolutions == convolutions - drawn.undefined
