"""The roofline: counted from shapes by hand, and never without its name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from gfcompile.frontend.losses import resolve_loss
from gfcompile.job import Analysis, Job
from gfcompile.report import Report, make_report
from gfcompile.report.estimate import count_costs, estimate_line, make_estimate
from gfcompile.report.machine_schema import Estimate, NoEstimate
from gfcompile.report.page import render_page
from gfcompile.report.summary import head_text, summary_text
from gfcompile.settings.schema import Request
from gfcompile.targets import Figure, Machine, Target, find_target
from tests.lean import analyse_lean

BATCH, IN, MIDDLE, OUT, SIZE, CLASSES = 2, 3, 8, 16, 12, 5
PIXELS = BATCH * SIZE * SIZE
FLOAT = 4


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(IN, MIDDLE, 3, padding=1, bias=False), nn.BatchNorm2d(MIDDLE), nn.ReLU())
        self.last = nn.Conv2d(MIDDLE, OUT, 1)
        self.head = nn.Linear(OUT, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.last(self.stem(x)).mean((2, 3)))


def analyse_for(target: Target) -> Analysis:
    job = Job(Net(), (torch.zeros(BATCH, IN, SIZE, SIZE),), resolve_loss("cross_entropy"), Request(layers=1))
    return analyse_lean(job, target)


def machine(gflops: float, gbs: float, watts: float | None = None) -> Target:
    power = Figure(watts, "a meter") if watts else None
    figures = Machine(Figure(gflops, "a brochure"), Figure(gbs, "a data sheet"), watts=power)
    return replace(find_target("rpi4"), machine=figures)


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    return analyse_for(machine(gflops=1, gbs=1e6, watts=3))


@pytest.fixture(scope="module")
def report(analysis: Analysis) -> Report:
    return make_report(analysis)


@pytest.mark.slow
def test_counts_are_those_of_the_shapes(analysis: Analysis) -> None:
    """The frozen convolution, with its folded batch norm as a bias and its ReLU: a sum of 27 products a value."""
    costs = {
        (cost.layer, cost.backward): cost
        for cost in count_costs(analysis.programs["train"].program, analysis.steps["train"])
    }
    stem = costs["stem.0", False]
    values = PIXELS * MIDDLE
    assert stem.flops == values * (2 * 9 * IN + 2)
    assert stem.bytes == FLOAT * (PIXELS * IN + 9 * IN * MIDDLE + MIDDLE + values)
    assert costs["last", False].flops == pytest.approx(PIXELS * OUT * (2 * MIDDLE + 1), rel=0.1)  # its scaling may fuse
    assert {("last", True), ("head", False), ("head", True)} <= costs.keys()


def test_arithmetic_is_the_limit_where_memory_is_fast(analysis: Analysis) -> None:
    estimate = make_estimate(analysis)
    assert isinstance(estimate, Estimate)
    assert estimate.numbers_are == "estimate (roofline, no measurement)"
    costs = count_costs(analysis.programs["train"].program, analysis.steps["train"])
    flops = sum(cost.flops for cost in costs)
    assert estimate.flops == flops
    assert estimate.seconds_a_step == pytest.approx(flops / 1e9, rel=1e-3)
    assert estimate.joules_a_step == pytest.approx(3 * flops / 1e9, rel=1e-3)
    assert sum(row.seconds for row in estimate.layers) == pytest.approx(estimate.seconds_a_step)
    assert estimate.layers[0].layer == "stem.0"
    assert estimate.figures.peak_gflops == Figure(1, "a brochure")


def test_memory_is_the_limit_where_arithmetic_is_fast(analysis: Analysis) -> None:
    slow = replace(analysis, scheduler=replace_target(analysis, machine(gflops=1e6, gbs=1)))
    estimate = make_estimate(slow)
    program = analysis.programs["train"].program
    moved = sum(sum(program.buffers[index].bytes for index in {*call.inputs, *call.outputs}) for call in program.calls)
    assert isinstance(estimate, Estimate)
    assert estimate.bytes == moved
    assert estimate.seconds_a_step == pytest.approx(moved / 1e9, rel=1e-3)
    assert estimate.joules_a_step is None
    assert " J " not in estimate_line(estimate)


def replace_target(analysis: Analysis, target: Target) -> Any:
    return type(analysis.scheduler)(target)


def test_it_is_always_named(report: Report) -> None:
    line = estimate_line(report.estimate)
    assert line.startswith("estimate (roofline, no measurement): about ")
    assert " per step on rpi4; most in stem.0 forward " in line
    assert line in head_text(report, None, is_foreign=True).splitlines()
    assert "\nestimate (roofline, no measurement) by layer:\nlayer " in summary_text(report)
    page = render_page(report)
    assert "## Estimate, no measurement\n\nestimate (roofline, no measurement): about " in page
    assert (
        "* 1 GFLOP/s float32 at most: a brochure\n* 1e+06 GB/s of memory bandwidth: a data sheet\n* 3 W: a meter"
        in page
    )


@pytest.mark.slow
def test_no_figures_no_estimate() -> None:
    estimate = make_estimate(analyse_for(find_target("native")))
    reason = "target 'native' has no published peak and bandwidth in its file"
    assert estimate == NoEstimate(target="native", none=reason)
    assert estimate_line(estimate) == f"estimate (roofline, no measurement): none, {reason}"
