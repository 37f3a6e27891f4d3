"""The front against brute force over every assignment, with costs summed anew from their definition."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from gfcompile.budget.front import STEP, Candidate, Offer, find_front, search, spread, staircase, undominated

FROZEN = "freeze"
BASE = (100, 1000)


def random_layers(rng: random.Random, count: int) -> list[list[Offer]]:
    """Offers with small numbers, so that ties are common; choices are their own places."""
    layers = []
    for _ in range(count):
        offers = [Offer(FROZEN, False, (0, 0), (rng.randint(0, 3), rng.randint(0, 9)), 0)]
        for choice in range(rng.randint(1, 3)):
            size, flops = rng.randint(0, 12), rng.randint(0, 12)
            passing = (size, flops + rng.randint(0, 6))
            offers.append(Offer(choice, True, (size, flops), passing, rng.randint(0, 12)))
        layers.append(offers)
    return layers


def every_plan(layers: list[list[Offer]]) -> list[tuple[int, int, int]]:
    """Bytes, FLOPs and points of all assignments: nothing before the first trained layer costs, all after it pass."""
    found = []
    for plan in itertools.product(*layers):
        trained = [index for index, offer in enumerate(plan) if offer.trains]
        size, flops = BASE
        if trained:
            first = trained[0]
            costs = [plan[first].first, *(offer.passing for offer in plan[first + 1 :])]
            size, flops = size + sum(cost[0] for cost in costs), flops + sum(cost[1] for cost in costs)
        found.append((size, flops, sum(plan[index].points for index in trained)))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("count", range(1, 9))
def test_equals_brute_force(count: int) -> None:
    rng = random.Random(count)
    for _ in range(4 if count > 6 else 12):
        layers = random_layers(rng, count)
        plans = every_plan(layers)
        front = find_front(layers, FROZEN, BASE)
        assert {(each.bytes, each.flops, each.points) for each in front} == set(pareto(plans))
        for _ in range(25):
            memory, flops = BASE[0] + rng.randint(0, 60), BASE[1] + rng.randint(0, 90)
            best = max(points for size, work, points in plans if size <= memory and work <= flops)
            assert next(each for each in front if each.bytes <= memory and each.flops <= flops).points == best


def pareto(plans: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    distinct = set(plans)
    kept: list[tuple[int, int, int]] = []
    for size, flops, points in sorted(distinct, key=lambda plan: (plan[0], plan[1], -plan[2])):
        if not any(other[1] <= flops and other[2] >= points for other in kept):
            kept.append((size, flops, points))
    return kept


def test_choices_give_the_sums() -> None:
    layers = random_layers(random.Random(5), 6)
    for each in find_front(layers, FROZEN, BASE):
        plan = [
            next(offer for offer in offers if offer.choice == choice)
            for offers, choice in zip(layers, each.choices, strict=True)
        ]
        assert (each.bytes, each.flops, each.points) in every_plan([[offer] for offer in plan])


def test_of_equals_the_first_stays() -> None:
    assert undominated(np.array([[1, 2, -1], [1, 1, -1], [1, 1, -1]])) == [1]


def test_a_spread_keeps_the_ends_and_is_no_larger() -> None:
    front = find_front(random_layers(random.Random(7), 8), FROZEN, BASE)
    assert len(front) > 24
    few = spread(front, 24)
    assert len(few) <= 26
    assert set(few) <= set(front)
    assert few[0] == front[0]
    assert min(each.bytes for each in few) == min(each.bytes for each in front)
    assert spread(front, len(front)) == front


def test_a_staircase_rises_in_bytes_and_score() -> None:
    front = find_front(random_layers(random.Random(3), 8), FROZEN, BASE)
    stairs = staircase(front)
    assert 3 < len(stairs) < len(front)
    assert all(a.bytes > b.bytes and a.points > b.points for a, b in itertools.pairwise(stairs))
    assert stairs[0].points == max(each.points for each in front)
    assert stairs[-1].bytes == min(each.bytes for each in front)
    for each in front:
        assert any(step.bytes <= STEP * each.bytes and step.points >= each.points for step in stairs)


def test_a_search_finds_the_first_of_a_monotone_row_and_asks_few() -> None:
    row = [Candidate((), 0, 0, 1000 - index) for index in range(1000)]
    for first in (0, 1, 500, 998, 999, 1000):
        asked: set[int] = set()

        def fits(each: Candidate, first: int = first, asked: set[int] = asked) -> bool:
            asked.add(each.points)
            return each.points <= 1000 - first

        assert search(row, fits) == (row[first] if first < 1000 else None)
        assert len(asked) <= 14
    assert search([], lambda _: True) is None


def test_a_search_with_more_memory_is_never_worse_whatever_the_arenas() -> None:
    """Arenas that hardly follow the order; what is found fits, and gets no worse."""
    rng = random.Random(1)
    surprises = 0
    for _ in range(300):
        row = [Candidate((index,), 0, 0, 100 - index) for index in range(rng.randint(1, 60))]
        arenas = {each: each.points + rng.randint(0, 80) for each in row}
        best = None
        for memory in range(0, 200, 3):
            fitting = {each for each in row if arenas[each] <= memory}
            found = search(row, fitting.__contains__)
            assert found is None or found in fitting
            if best is not None:
                assert found is not None
                assert found.points >= best.points
            surprises += found is not None and found != next(each for each in row if each in fitting)
            best = found
    assert surprises, "the arenas are not monotone"
