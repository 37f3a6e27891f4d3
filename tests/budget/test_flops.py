"""Counted FLOPs of plans against the convolutions in each plan's own graph: never fewer."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from gfcompile.budget.choices import as_request
from gfcompile.budget.front import Offer
from gfcompile.budget.planner import Planner, make_planner
from gfcompile.budget.traces import Traces
from gfcompile.frontend.losses import resolve_loss
from gfcompile.graph.multiply_adds import multiply_adds
from gfcompile.job import Job
from gfcompile.passes.select import BACKWARD
from gfcompile.plan import make_plan
from gfcompile.report import survey_report
from gfcompile.report.schema import TrainedFlops
from gfcompile.settings.planning import Choice
from gfcompile.settings.schema import Request
from gfcompile.stages import make_survey
from gfcompile.targets import find_target
from tests.budget import nets
from tests.selection import often

CONVOLUTION = torch.ops.aten.convolution.default
Net = Callable[[], tuple[nn.Module, Tensor, Tensor]]
TWICE = "a kernel that is used twice"  # its report counts the second use as exact where it is filtered
CASES = {
    "a chain": (nets.small, Request(layers=3), True),
    "a frozen convolution behind a trained one": (nets.small, Request(train=("0", "4", "10")), True),
    "without a head": (nets.small, Request(train=("0", "4")), True),
    "a convolution as head": (nets.conv_head, Request(), True),
    "batch norms that every plan trains": (nets.normed, Request(train=("body.3", "body.4", "body.6")), True),
    "and the convolution before them is frozen": (nets.normed, Request(train=("body.1", "body.6")), True),
    "one dimension": (nets.one_dimensional, Request(), True),
    "transposed": (nets.transposed, Request(), True),
    "a projection beside the trained layers": (nets.projected, Request(), False),
    "three dimensions": (nets.volumes, Request(), False),
    TWICE: (nets.tied, Request(), False),
    "a kernel that is used again behind another": (nets.again, Request(), False),
}


KINDS = [
    "a chain",
    "a convolution as head",
    "batch norms that every plan trains",
    "a projection beside the trained layers",
    TWICE,
]


@pytest.mark.slow
@pytest.mark.parametrize("case", often(CASES, KINDS))
def test_every_plan_counts_what_its_graph_computes(case: str) -> None:
    """All ways to train some of the layers exactly. Where branches make it unclear, too much is counted.

    The steps are cut out of one trace: tests/budget/test_traces.py holds them against traces of their own.
    """
    net, request, is_equal = CASES[case]
    _, planner = prepared(net, request, ())
    for offers in itertools.product(*planner.prices.offers):
        expected = in_the_graph(planner.arenas.traces, chosen(planner, offers))
        if is_equal:
            assert flops_of(planner, offers) == expected
        else:
            assert flops_of(planner, offers) >= expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    often(
        [case for case in CASES if case != TWICE],
        [
            "a chain",
            "one dimension",
            "a projection beside the trained layers",
            "a kernel that is used again behind another",
        ],
    ),
)
def test_no_plan_counts_less_than_its_report(case: str) -> None:
    """Filtered ones too: the report counts the trained layers and every forward pass."""
    net, request, _ = CASES[case]
    job, planner = prepared(net, request, (2,))
    layers = make_survey(job)
    for offers in itertools.product(*planner.prices.offers):
        choices = chosen(planner, offers)
        if not any(choice.trains for choice in choices.values()):
            continue
        plan = make_plan(layers, as_request(choices, job.request))
        rows = [row.flops for row in survey_report(layers, plan, (), (2,)).layers if row.flops is not None]
        counted = sum(row.filtered.total if isinstance(row, TrainedFlops) else row.exact.forward for row in rows)
        assert flops_of(planner, offers) >= counted


def prepared(net: Net, request: Request, edges: Sequence[int]) -> tuple[Job, Planner]:
    model, x, _ = net()
    job = Job(model, (x,), resolve_loss("cross_entropy"), request)
    return job, make_planner(job, find_target("native"), edges, ())


def chosen(planner: Planner, offers: Sequence[Offer]) -> dict[str, Choice]:
    made = {
        name: offer.choice
        for name, offer in zip(planner.prices.layers, offers, strict=True)
        if isinstance(offer.choice, Choice)
    }
    return {**made, **dict.fromkeys(planner.prices.heads, Choice("exact"))}


def flops_of(planner: Planner, offers: Sequence[Offer]) -> int:
    """By the definition of an offer: nothing before the first trained layer costs, all after it pass."""
    first = next((index for index, offer in enumerate(offers) if offer.trains), len(offers))
    costs = [offers[first].first, *(offer.passing for offer in offers[first + 1 :])] if first < len(offers) else []
    return planner.prices.base[1] + sum(flops for _, flops in costs)


def in_the_graph(traces: Traces, choices: dict[str, Choice]) -> int:
    """Convolutions and their gradients, of the step that this plan trains."""
    if not any(choice.trains for choice in choices.values()):
        graph = traces.whole.forward.body.graph
    else:
        graph = traces(as_request(choices, traces.surveyed.job.request)).training.body.graph
    return 2 * sum(multiply_adds(node) for node in graph.nodes if node.target in (CONVOLUTION, BACKWARD))
