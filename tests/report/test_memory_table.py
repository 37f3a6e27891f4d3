"""The memory column of the paper's Table 2 (docs/method.md, section 2), to its last digit; KB is 1024 bytes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import nn

from gfcompile.frontend.losses import resolve_loss
from gfcompile.job import Job
from gfcompile.plan import Layer, make_plan
from gfcompile.report import SurveyReport, survey_report
from gfcompile.report.counts import kept_bytes
from gfcompile.report.memory_schema import ConvInputs
from gfcompile.settings.schema import Request
from gfcompile.stages import make_survey
from tests.models.mobilenet import mobilenet_v2
from tests.models.resnet import resnet18, resnet34

MODELS: dict[str, Callable[[], nn.Module]] = {
    "mobilenet_v2": mobilenet_v2,
    "resnet18": resnet18,
    "resnet34": resnet34,
}


@cache
def survey_of(model: str) -> list[Layer]:
    return make_survey(Job(MODELS[model](), (torch.zeros(1, 3, 224, 224),), resolve_loss("cross_entropy"), Request()))


def report_of(model: str, layers: int) -> SurveyReport:
    plan = make_plan(survey_of(model), Request(layers=layers, r={"*": 2}))
    return survey_report(survey_of(model), plan, plan.refused, (1, 3, 224, 224))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "layers", "exact", "filtered"),
    [
        ("mobilenet_v2", 2, 245.00, 80.00),
        ("mobilenet_v2", 4, 459.375, 150.00),  # printed as 459.38
        ("resnet18", 2, 196.00, 64.00),
        ("resnet18", 4, 490.00, 112.00),
        ("resnet34", 2, 196.00, 64.00),
        ("resnet34", 4, 392.00, 128.00),
    ],
)
def test_table_2(model: str, layers: int, exact: float, filtered: float) -> None:
    found = report_of(model, layers).memory.conv_inputs
    assert found == ConvInputs(exact_bytes=int(exact * 1024), filtered_bytes=int(filtered * 1024))
    assert found.numbers_are == "counted"


@pytest.mark.parametrize(("model", "megabytes"), [("resnet18", 8.33), ("resnet34", 13.11), ("mobilenet_v2", 25.81)])
def test_all_convolutions(model: str, megabytes: float) -> None:
    """The table's "All" is every convolution's input, projections included; for MobileNetV2 it prints 24.33 MB."""
    geometries = [layer.geometry for layer in survey_of(model) if layer.kind == "conv"]
    total = sum(kept_bytes(geometry) for geometry in geometries if geometry is not None)
    assert round(total / 2**20, 2) == megabytes
