"""Steps that are cut out of one trace, beside traces and analyses of their own."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from gfcompile.budget.arenas import Arenas, Placed
from gfcompile.budget.choices import FROZEN, TRAINED, as_request, choices_of
from gfcompile.budget.traces import Traces
from gfcompile.frontend.losses import resolve_loss
from gfcompile.frontend.narrow import are_equal, drop_unread, narrow
from gfcompile.job import Job
from gfcompile.plan import make_plan
from gfcompile.settings.planning import Choice
from gfcompile.settings.schema import Request
from gfcompile.stages import look_at, trace
from gfcompile.step import Role
from gfcompile.targets import find_target
from tests.budget import nets
from tests.budget.test_search import planner_of
from tests.lean import analyse_lean
from tests.selection import often

Net = tuple[nn.Module, Tensor, Tensor]
NETS = [
    nets.small, nets.conv_head, nets.normed, nets.one_dimensional, nets.transposed, nets.projected, nets.tied,
    nets.again, nets.volumes,
]  # fmt: skip


def job_of(net: Net, request: Request | None = None) -> Job:
    model, x, _ = net
    return Job(model, (x,), resolve_loss("cross_entropy"), request or Request())


def traces_of(job: Job) -> Traces:
    surveyed = look_at(job)
    names = [layer.name for layer in make_plan(surveyed.layers, job.request).trained]
    return Traces(surveyed, as_request(dict.fromkeys(names, TRAINED), job.request))


def random_choices(traces: Traces, rng: random.Random) -> dict[str, Choice]:
    """Of the layers that are trained, one at least; a head is trained or not like the others."""
    layers = {layer.name: layer for layer in traces.whole.layers}
    choices: dict[str, Choice] = {}
    while not any(choice.trains for choice in choices.values()):
        for planned in traces.whole.plan.trained:
            layer = layers[planned.name]
            is_conv = layer.kind == "conv"
            can_filter, can_draw = is_conv and layer.unfilterable is None, is_conv and layer.undrawable is None
            choices[planned.name] = rng.choice(choices_of((2, 4), (0.5,), can_filter, can_draw))
    return choices


AS_IT_IS, WITH_STATISTICS = Request(), Request(batchnorm="train", train_affine=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("net", "wanted"),
    often(
        [(net, wanted) for wanted in (AS_IT_IS, WITH_STATISTICS) for net in NETS],
        [
            *((net, AS_IT_IS) for net in (nets.small, nets.transposed, nets.projected, nets.tied)),
            (nets.normed, WITH_STATISTICS),
        ],
    ),
)
def test_a_cut_step_is_the_traced_one(net: Callable[[], Net], wanted: Request) -> None:
    """Call by call, strides included; and the trace that it was cut from stays as it was."""
    job = job_of(net(), wanted)
    traces, rng = traces_of(job), random.Random(3)
    before = traces.whole.training.duplicate(traces.whole.plan)
    for _ in range(2):
        request = as_request(random_choices(traces, rng), job.request)
        cut = traces(request)
        own = trace(replace(job, request=request))
        drop_unread(own.training)
        assert cut.plan == own.plan
        assert are_equal(cut.training, own.training)
        assert are_equal(cut.forward.duplicate(cut.plan), own.forward.duplicate(own.plan))
    assert are_equal(traces.whole.training, before)


@pytest.mark.slow
def test_less_trained_is_another_step() -> None:
    traces = traces_of(job_of(nets.small()))
    plans = [make_plan(traces.whole.layers, Request(train=names)) for names in (("4", "10"), ("6", "10"))]
    one, other = (narrow(traces.whole.training, plan) for plan in plans)
    assert not are_equal(one, other)
    assert len(one.body.graph.nodes) < len(traces.whole.training.body.graph.nodes)


@pytest.mark.slow
@pytest.mark.parametrize("net", often([nets.small, nets.projected], [nets.projected]))
def test_arenas_are_those_of_an_analysis(net: Callable[[], Net]) -> None:
    """One after another, with one scheduler, beside analyses that know nothing of each other."""
    job, target = job_of(net()), find_target("native")
    traces, rng = traces_of(job), random.Random(5)
    arenas = Arenas(traces, target)
    for _ in range(2):
        choices = random_choices(traces, rng)
        analysis = analyse_lean(replace(job, request=as_request(choices, job.request)), target)
        assert arenas(choices) == Placed.of(analysis)


class Looking(nn.Module):
    """Computes something else where its first layer is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 3), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x)
        x = x.relu() if self.one.weight.requires_grad else x.sigmoid()
        return self.head(self.two(x).mean((2, 3)))


@pytest.mark.slow
def test_a_model_that_looks_at_what_is_trained_is_traced_for_every_plan() -> None:
    torch.manual_seed(0)
    job = job_of((Looking(), torch.randn(2, 2, 8, 8), torch.tensor([0, 1])))
    traces = traces_of(job)
    request = as_request({"two": TRAINED, "head": TRAINED}, job.request)
    own = trace(replace(job, request=request)).training
    assert not are_equal(traces(request).training, own)
    traces.check(as_request({"head": TRAINED}, job.request))
    assert not traces.are_cut
    assert are_equal(traces(request).training, own)


@pytest.mark.slow
def test_a_model_that_does_not_is_cut() -> None:
    traces = traces_of(job_of(nets.normed()))
    traces.check(Request(train=("head.2",)))
    assert traces.are_cut


class Counting(nn.Module):
    """Counts its batches in eval mode too, and returns more than tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(2, 4, 3), nn.Conv2d(4, 5, 3)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> tuple[Tensor, None, int]:
        self.count.add_(1)
        return self.two(self.one(x)).mean((2, 3)), None, 3


def test_a_forward_pass_is_that_of_several_plans() -> None:
    traces = traces_of(job_of((Counting(), torch.randn(2, 2, 8, 8), torch.tensor([0, 1]))))
    first, second = (traces.own(Request(layers=count)).forward for count in (1, 2))
    assert [value.role for value in first.outputs] == [value.role for value in second.outputs] == [Role.OUTPUT]
    assert [node.name for node in first.body.graph.nodes] == [node.name for node in second.body.graph.nodes]


class Between(nn.Module):
    """Computes something else where only its first layer is frozen: not with all of it trained, nor with nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 3), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x).relu()
        if self.two.weight.requires_grad and not self.one.weight.requires_grad:
            x = torch.cat([x] * 9, 1).softmax(1)[:, :4]  # takes more
        return self.head(self.two(x).mean((2, 3)))


def test_the_chosen_plan_is_placed_as_it_is_compiled() -> None:
    torch.manual_seed(0)
    planner = planner_of((Between(), torch.randn(2, 2, 8, 8), torch.tensor([0, 1])), Request(), (2,))
    assert planner.arenas.traces.are_cut, "its first check sees nothing"
    between = {"one": FROZEN, "two": TRAINED, "head": TRAINED}
    cut = planner.arenas(between)
    said: list[str] = []
    planner.progress = said.append
    found = planner.find(cut.arena_bytes)
    assert "that takes another arena: searching again, with a trace for every plan" in said
    assert planner.arenas(between).arena_bytes > cut.arena_bytes
    assert found.chosen.choices != between
    assert found.chosen.placed is not None
    job = replace(planner.job, request=as_request(found.chosen.choices, Request()))
    analysis = analyse_lean(job, find_target("native"))
    assert analysis.arena_bytes == found.chosen.placed.arena_bytes <= cut.arena_bytes


def test_the_chosen_plan_is_placed_again_once() -> None:
    planner = planner_of(nets.small(), Request(layers=2), (2,))
    said: list[str] = []
    planner.progress = said.append
    between = next(each for each in planner.front if len(set(each.choices)) > 1 and each.points)
    memory = planner.arenas(planner.choices(between)).arena_bytes
    found = planner.find(memory)
    assert said[-1] == "placing the chosen plan from a trace of its own"
    said.clear()
    assert planner.find(memory).chosen == found.chosen
    assert said == []
