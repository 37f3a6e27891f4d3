"""What the planner chooses beside every plan there is, each placed; and large fronts, of which few are placed."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from gfcompile.budget.choices import FROZEN, TRAINED
from gfcompile.budget.planner import ALL_PLACED, Planner, make_planner
from gfcompile.errors import UserError
from gfcompile.frontend.losses import resolve_loss
from gfcompile.job import Job
from gfcompile.settings.schema import Request
from gfcompile.targets import find_target
from tests.budget import nets
from tests.selection import often


def planner_of(
    net: tuple[nn.Module, torch.Tensor, torch.Tensor],
    request: Request,
    edges: tuple[int, ...] = (2, 4),
    shares: tuple[float, ...] = (),
    measured: bool = False,
) -> Planner:
    model, x, y = net
    job = Job(model, (x,), resolve_loss("cross_entropy"), request)
    return make_planner(job, find_target("native"), edges, shares, ((x,), y) if measured else None)


@pytest.mark.slow
def test_no_plan_that_fits_is_better() -> None:
    """All plans of two layers are placed, also those that the estimate of kept bytes leaves out."""
    planner = planner_of(nets.small(), Request(layers=2), (2,), measured=True)
    plans = {}
    for offers in itertools.product(*planner.prices.offers):
        choices = dict(zip(planner.prices.layers, (offer.choice for offer in offers), strict=True))
        heads = dict.fromkeys(planner.prices.heads, TRAINED)
        placed = planner.arenas({**choices, **heads})  # type: ignore[dict-item]
        plans[offers] = (placed.arena_bytes, sum(offer.points for offer in offers) / 1e6)
    assert len(plans) == 9
    arenas = sorted({arena for arena, _ in plans.values()})
    assert len(arenas) > 3
    for memory in [*arenas, arenas[-1] + 1000]:
        best = max(score for arena, score in plans.values() if arena <= memory)
        assert planner.find(memory).chosen.score >= best


@pytest.mark.coverage
def test_a_large_front_is_searched_by_halving() -> None:
    planner = planner_of(nets.small(), Request(layers=3), (1, 2, 4, 7), (0.5, 0.25))
    assert len(planner.front) > ALL_PLACED
    most = planner.find(10**7).chosen.placed
    assert most is not None
    scores = []
    for memory in range(most.arena_bytes // 2, most.arena_bytes, most.arena_bytes // 8):
        try:
            found = planner.find(memory).chosen
        except UserError:
            assert not scores
            continue
        assert found.placed is not None
        assert found.placed.arena_bytes <= memory
        scores.append(found.score)
    assert scores == sorted(scores)
    assert len(set(scores)) > 2
    assert len(planner.arenas.known) < len(planner.front) // 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("net", "measured"),
    often(
        [(net, measured) for net in (nets.one_dimensional, nets.transposed) for measured in (True, False)],
        [(nets.one_dimensional, True), (nets.transposed, False)],
    ),
)
def test_layers_that_cannot_be_filtered_are_trained(net, measured: bool) -> None:  # type: ignore[no-untyped-def]
    planner = planner_of(net(), Request(), measured=measured)
    found = planner.find(10**7)
    assert found.chosen.score == 1
    assert all(choice == TRAINED for choice in found.chosen.choices.values())
    assert found.chosen.placed is not None
    assert found.chosen.bytes == pytest.approx(found.chosen.placed.saved_bytes, rel=0.2)


@pytest.mark.slow
def test_layers_that_share_a_kernel_are_one_choice() -> None:
    planner = planner_of(nets.tied(), Request(), measured=True)
    assert planner.prices.layers == ("two",)
    assert planner.find(10**7).chosen.score == 1


@pytest.mark.slow
def test_no_gradient_on_the_batch() -> None:
    model, x, y = nets.small()
    with torch.no_grad():
        model[10].weight.zero_()
    with pytest.raises(UserError) as error:
        planner_of((model, x, y), Request(train=("4", "6")), measured=True)
    assert str(error.value) == (
        "plan: no gradient reaches these convolutions on this batch, so nothing tells plans apart; give another batch,"
        " or none: layers are then worth the same"
    )


@pytest.mark.slow
def test_weights_that_are_not_finite() -> None:
    model, x, y = nets.small()
    with torch.no_grad():
        model[4].weight[0, 0, 0, 0] = float("nan")
    with pytest.raises(UserError) as error:
        planner_of((model, x, y), Request())
    assert str(error.value) == "plan: '4.weight' holds NaN or infinity; load other weights"


@pytest.mark.slow
def test_a_linear_layer_in_the_middle_pays_for_itself() -> None:
    """What is kept at a layer that is no head is paid by the trained layer before it, not by every plan."""

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Conv2d(2, 64, 3, padding=1), nn.Conv2d(64, 4, 3, padding=1)
            self.gate, self.head = nn.Linear(64, 64), nn.Linear(4, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.one(x)
            x = x * torch.sigmoid(self.gate(x.mean((2, 3))))[..., None, None]
            return self.head(self.two(x).mean((2, 3)))

    torch.manual_seed(0)
    planner = planner_of((Gated(), torch.randn(2, 2, 8, 8), torch.tensor([0, 1])), Request(), ())
    frozen = planner.arenas({"one": FROZEN, "two": FROZEN, "head": TRAINED})
    assert planner.prices.base[0] == pytest.approx(frozen.saved_bytes, rel=0.1)
