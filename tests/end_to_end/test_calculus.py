"""The patch calculus changes no gradient: steps with and without it agree, in float64 graphs and as compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gfcompile.frontend.losses import resolve_loss
from gfcompile.frontend.survey import survey
from gfcompile.frontend.trace import trace_forward, trace_training, working_copy
from gfcompile.passes import pipeline
from gfcompile.plan import make_plan
from gfcompile.settings.schema import Request
from gfcompile.step import STATE, Role, Step
from tests.end_to_end.conftest import random_batch
from tests.lean import lean_compile
from tests.models import randomise_statistics
from tests.models.densenet import densenet_like
from tests.models.mobilenet import mobilenet_v2, short_mobilenet_v2
from tests.models.mobilenet_v3 import mobilenet_v3_like, short_mobilenet_v3
from tests.models.resnet import resnet18
from tests.passes.tiny import duplicate
from tests.selection import often
from tests.tolerances import CALCULUS_FLOAT32, CALCULUS_FLOAT64

MODELS: dict[str, Callable[[], nn.Module]] = {
    "resnet18": lambda: resnet18(10, width=16),
    "mobilenet_v2": lambda: mobilenet_v2(10, width_mult=0.25),
    "mobilenet_v3_like": lambda: mobilenet_v3_like(10, width=0.5),
    "short_mobilenet_v2": lambda: short_mobilenet_v2(10, width_mult=0.25),
    "short_mobilenet_v3": lambda: short_mobilenet_v3(10, width=0.5),
    "densenet_like": lambda: densenet_like(10, width=16, depths=(2, 2, 3)),
}
NORMS: dict[str, dict[str, Any]] = {
    "frozen affine": {},
    "trained affine": {"train_affine": True},
    "train mode": {"batchnorm": "train", "train_affine": True},
}
INPUT = (2, 3, 64, 64)
VANISHED = 1e-4  # of the largest gradient's norm


def model_named(name: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return randomise_statistics(MODELS[name](), seed=0)


def traced(model: nn.Module, x: Tensor, y: Tensor, request: Request) -> Step:
    model = working_copy(model)  # dropout off, as the compiler has it
    layers = survey(trace_forward(model, (x,)), model)
    return trace_training(model, (x,), y, resolve_loss("cross_entropy"), make_plan(layers, request))


def gradients_of(step: Step, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Run the graph in float64."""
    doors = {Role.INPUT: x, Role.TARGET: y, Role.SAMPLE_WEIGHT: torch.ones(len(x))}
    arguments = [
        step.tensors[value.name] if value.role in STATE or value.role is Role.CONSTANT else doors[value.role]
        for value in step.inputs
    ]
    with torch.no_grad():
        results = step.run(*(a.double() if a.is_floating_point() else a for a in arguments))
    found = zip(step.outputs, results, strict=True)
    return {value.name: result for value, result in found if value.role is Role.GRADIENT}


def assert_gradients_near(found: Mapping[str, Any], expected: Mapping[str, Any], tolerance: float) -> None:
    """Each relative to its own norm; one that vanishes (a bias before a batch norm in train mode) to the largest."""
    norms = {name: float(np.linalg.norm(gradient)) for name, gradient in expected.items()}
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        distance = float(np.linalg.norm(np.asarray(found[name]) - np.asarray(gradient)))
        assert distance <= tolerance * max(norms[name], VANISHED * max(norms.values())), name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "norms", "r"),
    often(
        [
            (name, norms, r)
            for name in MODELS
            for norms, r in (("frozen affine", 3), ("trained affine", 2), ("train mode", 2))
        ],
        [
            ("resnet18", "frozen affine", 3),
            ("mobilenet_v3_like", "trained affine", 2),
        ],
    ),
)
def test_float64_graphs_agree(name: str, norms: str, r: int) -> None:
    """More layers than the tables train, so that joins, gates, concatenations and strides are all passed."""
    x, y = random_batch(INPUT, seed=1)
    step = traced(model_named(name), x, y, Request(layers=10, r={"*": r}, **NORMS[norms]))
    published = pipeline.run(duplicate(step), pipeline.filtering_passes(calculus=False))
    calculus = pipeline.run(duplicate(step), pipeline.filtering_passes(calculus=True))
    (event,) = [event for event in calculus.log if event.pass_name == "sink"]
    assert event.sites, "the pass found nothing to do"
    expected, found = gradients_of(published, x, y), gradients_of(calculus, x, y)
    assert_gradients_near(found, expected, CALCULUS_FLOAT64)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "norms"),
    often(
        [
            ("resnet18", "train mode"),
            ("mobilenet_v2", "frozen affine"),
            ("mobilenet_v3_like", "trained affine"),
            ("short_mobilenet_v3", "trained affine"),
            ("densenet_like", "train mode"),
        ],
        [],
    ),
)
def test_compiled_steps_agree(name: str, norms: str, tmp_path: Path) -> None:
    """`make test` has both halves: graphs with and without the calculus agree, compiled steps are their graphs."""
    x, y = random_batch(INPUT, seed=1)
    gradients = []
    for calculus in (False, True):
        out = tmp_path / f"calculus_{calculus}_step"
        with lean_compile(model_named(name), x, layers=6, out=out, calculus=calculus, **NORMS[norms]) as step:
            gradients.append(step.gradients(x, y))
    published, found = gradients
    assert_gradients_near(found, published, CALCULUS_FLOAT32)
