"""The cut against trying them all."""

from __future__ import annotations

import itertools
import random

import pytest

from gfcompile.min_cut import find_far_side


def cost(capacities: dict[str, dict[str, int]], far: set[str]) -> int:
    return sum(c for node, ends in capacities.items() for end, c in ends.items() if node not in far and end in far)


@pytest.mark.parametrize("seed", range(20))
def test_no_cut_is_cheaper_and_none_as_cheap_is_smaller(seed: int) -> None:
    draw = random.Random(seed)
    inner = list("abcde")
    pairs = [(a, b) for a, b in itertools.permutations(["s", *inner, "t"], 2) if a != "t" and b != "s"]
    capacities: dict[str, dict[str, int]] = {}
    for a, b in draw.sample(pairs, 14):
        capacities.setdefault(a, {})[b] = draw.randint(0, 9)
    capacities.setdefault("a", {})["t"] = 1
    found = {str(node) for node in find_far_side(capacities, "s", "t")}
    sides = [{"t", *part} for size in range(6) for part in itertools.combinations(inner, size)]
    best = min(cost(capacities, side) for side in sides)
    assert cost(capacities, found) == best
    assert all(found <= side for side in sides if cost(capacities, side) == best)
