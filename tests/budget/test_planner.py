"""Plans of a real network: within their budget as compiled, never worse for more budget, and refusals in words."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import gfcompile
from gfcompile.budget.choices import FROZEN, TRAINED, as_request, choices_of
from gfcompile.budget.page import about, as_data, found_text, picture, write_found
from gfcompile.budget.planner import Planner, make_planner
from gfcompile.budget.score import estimated_scores
from gfcompile.errors import UserError
from gfcompile.frontend.losses import resolve_loss
from gfcompile.job import Job
from gfcompile.noise.spectrum import kernel_energy
from gfcompile.plan import make_plan
from gfcompile.report.counts import exact_flops, filtered_flops
from gfcompile.report.memory import make_memory
from gfcompile.report.units import in_bytes, in_flops
from gfcompile.settings.planning import EXACT, FILTER, Choice
from gfcompile.settings.schema import Request
from gfcompile.stages import make_survey
from gfcompile.targets import find_target
from tests.budget.nets import small
from tests.lean import analyse_lean, lean_compile
from tests.noise.eager_filter import backward, cosine
from tests.selection import often

BUDGETS = 50


@pytest.fixture(scope="module")
def job() -> Job:
    model, x, _ = small()
    return Job(model, (x,), resolve_loss("cross_entropy"), Request(layers=3))


@pytest.fixture(scope="module")
def planner(job: Job) -> Planner:
    """Of the last three convolutions, with few enough choices to place all that any budget asks for."""
    _, x, y = small()
    return make_planner(job, find_target("native"), (4,), (), ((x,), y))


@pytest.mark.slow
def test_the_budget_is_kept_and_more_of_it_is_never_worse(planner: Planner) -> None:
    """Over random budgets: the arena is the compiler's own, found by an analysis apart from the planner's."""
    least = min(planner.arenas(planner.choices(each)).arena_bytes for each in planner.front)
    most = max(placed.arena_bytes for placed in planner.arenas.known.values())
    rng = random.Random(0)
    budgets = sorted(rng.randint(least, most + most // 8) for _ in range(BUDGETS))
    scores, plans = [], {}
    for memory in budgets:
        found = planner.find(memory)
        assert found.chosen.placed is not None
        assert found.chosen.placed.arena_bytes <= memory
        scores.append(found.chosen.score)
        plans[tuple(found.chosen.choices.items())] = found.chosen
    assert scores == sorted(scores)
    assert len(plans) > 2, "the budgets tell plans apart"
    assert scores[-1] == max(each.points for each in planner.front) / 1e6


@pytest.mark.slow
def test_the_best_that_fits_is_chosen(planner: Planner) -> None:
    """Brute force over all candidates, every one placed."""
    arenas = {each: planner.arenas(planner.choices(each)).arena_bytes for each in planner.front}
    for memory in sorted(set(arenas.values())):
        for limit in sorted({each.flops for each in planner.front})[::3]:
            fits = [each for each, arena in arenas.items() if arena <= memory and each.flops <= limit]
            if fits:
                found = planner.find(memory, limit)
                assert found.chosen.score == max(each.points for each in fits) / 1e6
                assert found.chosen.flops <= limit


@pytest.mark.slow
def test_the_arena_is_the_one_that_the_compiler_places(planner: Planner, job: Job) -> None:
    found = planner.find(10**7)
    request = as_request(found.chosen.choices, job.request)
    analysis = analyse_lean(Job(job.module, job.example, job.loss, request))
    assert found.chosen.placed is not None
    assert found.chosen.placed.arena_bytes == analysis.arena_bytes
    assert found.chosen.placed.saved_bytes == analysis.saved_bytes


@pytest.mark.slow
@pytest.mark.parametrize("part", often([0, 0.5], [0.5]))
def test_built_libraries_say_what_the_plan_says(planner: Planner, tmp_path: Path, part: float) -> None:
    """Through plan.toml, and through the library's own word."""
    model, x, y = small()
    arenas = sorted({planner.arenas(planner.choices(each)).arena_bytes for each in planner.front})
    memory = arenas[int(part * len(arenas))]
    found = planner.find(memory)
    write_found(found, tmp_path / "plan.toml")
    step = lean_compile(model, (x,), plan=tmp_path / "plan.toml", out=tmp_path / "built_step", tuning=False)
    assert found.chosen.placed is not None
    assert step._library.arena_bytes == found.chosen.placed.arena_bytes <= memory
    filtered = {layer for layer, choice in found.chosen.choices.items() if choice.do == FILTER}
    assert filtered
    assert set(step.filtered_layers) == filtered
    assert step.train(x, y) > 0


def test_scores_are_the_progress_of_a_step(planner: Planner) -> None:
    """Worth: squared norms of exact gradients; what filtering leaves: the cosine. Both from eager PyTorch and NumPy."""
    model, x, y = small()
    layers = planner.prices.layers
    exact, _ = backward(model, x, y, dict.fromkeys(layers))
    total = sum(float((seen.gw**2).sum()) for seen in exact.values())
    for name in layers:
        worth = float((exact[name].gw ** 2).sum()) / total
        assert planner.scores.of(name, None) == pytest.approx(worth, rel=1e-3)
        filtered, _ = backward(model, x, y, {name: 4})
        left = max(0.0, cosine(exact[name].gw, filtered[name].gw))
        assert planner.scores.of(name, 4) == pytest.approx(worth * left, abs=1e-3)


def test_flops_are_counted(planner: Planner, job: Job) -> None:
    """By the paper's equations; the first trained layer hands nothing back."""
    geometry = {layer.name: layer.geometry for layer in make_survey(job) if layer.geometry is not None}
    forward = sum(exact_flops(each).forward for each in geometry.values())
    assert planner.prices.base[1] == forward
    for name, offers in zip(planner.prices.layers, planner.prices.offers, strict=True):
        by_choice = {offer.choice: offer for offer in offers}
        assert by_choice[FROZEN].passing[1] == exact_flops(geometry[name]).input_gradient
        assert by_choice[TRAINED].first[1] == exact_flops(geometry[name], input_gradient=False).backward
        assert by_choice[TRAINED].passing[1] == exact_flops(geometry[name]).backward
        counted = filtered_flops(geometry[name], 4)
        assert by_choice[Choice(FILTER, 4)].passing[1] == counted.total - counted.forward


def test_bytes_of_the_ends_are_near_those_that_the_step_keeps(planner: Planner) -> None:
    """The best plan, and the head alone: the estimate beside what the placed step saves."""
    for candidate in (planner.front[0], min(planner.front, key=lambda each: each.bytes)):
        assert candidate.bytes == pytest.approx(planner.arenas(planner.choices(candidate)).saved_bytes, rel=0.1)


def test_a_budget_below_the_forward_pass(planner: Planner) -> None:
    cheapest = min(each.flops for each in planner.front)
    for step_flops in (None, cheapest, 2 * cheapest):
        with pytest.raises(UserError) as error:
            planner.find(100, step_flops)
        text = str(error.value)
        assert text.startswith("--memory 100 B: too little: the frozen forward pass alone takes an arena of ")
        assert text.endswith("bytes); give that much or more, or a smaller --batch or --input")
        least = int(text.rpartition("(")[2].partition(" ")[0])
        assert planner.find(least, step_flops).chosen.placed is not None, "what it says is enough"


def test_flops_below_the_forward_pass(planner: Planner) -> None:
    with pytest.raises(UserError) as error:
        planner.find(10**7, 1000)
    least = min(each.flops for each in planner.front)
    assert str(error.value) == (
        f"--step-flops 1.00 k: the cheapest plan counts {in_flops(least)} ({least}); give that much or more"
    )
    assert planner.find(10**7, least).chosen.flops == least, "what it says is enough"


@pytest.mark.slow
def test_what_lies_beside_the_arena_is_told(planner: Planner, job: Job) -> None:
    found = planner.find(10**7)
    request = as_request(found.chosen.choices, job.request)
    memory = make_memory(analyse_lean(Job(job.module, job.example, job.loss, request)))
    placed = found.chosen.placed
    assert placed is not None
    assert placed.weight_bytes == memory.totals.weights
    assert placed.optimizer_bytes == memory.totals.optimizer_state
    assert placed.thread_bytes == memory.scratch_bytes_a_thread
    assert any(
        line.startswith(f"beside the arena: {in_bytes(placed.weight_bytes)} of weights, ") for line in about(found)
    )


@pytest.mark.slow
def test_sparse_draws_are_not_in_the_measured_cosine(planner: Planner) -> None:
    found = planner.measured(planner.find(10**7))
    drawn = {**found.chosen.choices, "4": Choice(EXACT, None, 0.25)}
    lines = about(replace(found, chosen=replace(found.chosen, choices=drawn)))
    assert lines[-1] == (
        "the weight gradient of all its convolutions has a cosine of 1.000 with the exact one, measured, all layers"
        " together, every channel updated: sparse draws are not in it"
    )


@pytest.mark.slow
def test_the_page(planner: Planner, tmp_path: Path) -> None:
    found = planner.measured(planner.find(10**7))
    text = found_text(found)
    assert "=>  1.000" in text
    assert "arena, placed" in text
    assert any("measured on the given batch" in line for line in about(found))
    assert any("has a cosine of 1.000 with the exact one" in line for line in about(found))
    assert as_data(found)["chosen"]["arena_bytes"] == found.chosen.placed.arena_bytes  # type: ignore[union-attr]
    assert picture(found).count("<circle") == sum(row.placed is not None for row in found.rows)
    assert "Score over the arena as placed" in picture(found)
    assert not any("sparse" in line for line in about(found))
    write_found(found, tmp_path / "plan.toml")
    assert (tmp_path / "plan.svg").exists()
    assert (tmp_path / "plan.json").exists()


def test_a_plan_that_cannot_be_written_is_not_searched(tmp_path: Path) -> None:
    model, x, _ = small()
    with pytest.raises(UserError) as error:
        gfcompile.find_plan(model, x, memory="1MB", out=tmp_path / "plan.svg")
    assert str(error.value) == (
        f"out='{tmp_path / 'plan.svg'}': a plan's name ends in .toml; use {tmp_path / 'plan.toml'}"
    )


def test_choices() -> None:
    assert [str(each) for each in choices_of((2,), (0.25,), can_filter=True, can_draw=True)] == [
        "freeze", "exact", "r=2", "exact sparse 0.25", "r=2 sparse 0.25",
    ]  # fmt: skip
    assert choices_of((2,), (0.25,), can_filter=False, can_draw=False) == [FROZEN, TRAINED]


def test_a_request_does_what_was_chosen(job: Job) -> None:
    choices = {"2": Choice(FILTER, 4, 0.5), "4": Choice(EXACT), "6": FROZEN, "10": TRAINED}
    plan = make_plan(make_survey(job), as_request(choices, job.request))
    assert {layer.name: (layer.r, layer.channels) for layer in plan.trained} == {
        "2": (4, 3),
        "4": (None, None),
        "10": (None, None),
    }


def test_estimated_scores_fall_with_r_and_rise_with_dc() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(2, 2, 3), torch.nn.Conv2d(2, 2, 3), torch.nn.Conv2d(2, 2, 1))
    with torch.no_grad():
        model[0].weight.fill_(1.0)
    scores = estimated_scores(model, ["0", "1", "2"], (2, 4))
    assert not scores.is_measured
    assert scores.of("0", None) == pytest.approx(1 / 3)
    for layer in ("1", "2"):
        assert scores.of(layer, None) > scores.of(layer, 2) > scores.of(layer, 4) > 0
    assert scores.of("0", 4) > scores.of("1", 4)


def test_estimated_scores_know_that_taps_share_a_gradient() -> None:
    """At r = 1 a 1x1 kernel is exact; a 3x3 one loses the mean over its nine taps."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(2, 2, 3), torch.nn.Conv2d(2, 2, 1))
    scores = estimated_scores(model, ["0", "1"], (1,))
    ratio = kernel_energy(model[0].weight).ratio
    assert ratio is not None
    smooth = ratio / (1 + ratio)
    assert scores.of("0", 1) == pytest.approx(0.5 * math.sqrt(smooth + (1 - smooth) / 9))
    assert scores.of("1", 1) == 0.5
