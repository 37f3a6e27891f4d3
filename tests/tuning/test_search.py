"""The search finds the best of a made-up table, and asks for nothing twice."""

from __future__ import annotations

from itertools import product
from math import exp

import pytest
from tvm import tirx

from gfcompile.codegen.schedules.choices import Option
from gfcompile.tuning.search import Search
from gfcompile.tuning.space import Candidate, Drawn
from tests.tuning.kernels import scaled

OPTIONS: dict[str, tuple[Option, ...]] = {
    "tile": tuple((rows, 16) for rows in range(1, 13)),
    "order": ("rows", "columns"),
    "tasks": (4, 8, 16, 32, 64, 128),
    "turns": (0, 1, 2, 4, 8),
}
OTHERS: dict[str, tuple[Option, ...]] = {"tile": ((1, 1), (2, 1)), "tasks": (4, 8)}
BODY: tirx.PrimFunc = scaled(1.0)  # a search never looks at it


def proposed(template: str, options: dict[str, tuple[Option, ...]]) -> Drawn:
    return Drawn(Candidate(template, {name: each[0] for name, each in options.items()}), options, BODY)


FIRST, SECOND = proposed("gemm", OPTIONS), proposed("dot", OTHERS)


def gain(candidate: Candidate) -> float:
    """Log of its ratio: a sum over its options, 0 for what the first template proposes."""
    if candidate.template == "dot":
        return -0.5 + 0.01 * OTHERS["tasks"].index(candidate.decisions["tasks"])
    steps = {name: options.index(candidate.decisions[name]) for name, options in OPTIONS.items()}
    tile = 0.4 - 0.1 * abs(steps["tile"] - 4)
    return tile + 0.1 * steps["order"] - 0.05 * abs(steps["tasks"] - 3) + 0.15 + 0.05 * (steps["turns"] == 2)


BEST = max(gain(Candidate("gemm", dict(zip(OPTIONS, each)))) for each in product(*OPTIONS.values()))


def options_of(candidate: Candidate) -> dict[str, tuple[Option, ...]]:
    return OPTIONS if candidate.template == "gemm" else OTHERS


def run(search: Search, asks: int, batch: int = 8) -> list[Candidate]:
    """Ask and tell; all that was asked."""
    asked: list[Candidate] = []
    while len(asked) < asks:
        found = search.ask(min(batch, asks - len(asked)))
        if not found:
            break
        for candidate in found:
            search.tell(candidate, options_of(candidate), exp(gain(candidate)))
        asked += found
    return asked


def test_the_other_templates_come_first_and_the_compilers_own_never() -> None:
    third = proposed("outer", OTHERS)
    asked = Search([FIRST, SECOND, third], seed=0).ask(8)
    assert [candidate.key for candidate in asked[:2]] == [SECOND.candidate.key, third.candidate.key]
    for candidate in run(Search([FIRST, SECOND], seed=0), 60):
        assert candidate.key != FIRST.candidate.key
        assert all(option in options_of(candidate)[name] for name, option in candidate.decisions.items())


@pytest.mark.parametrize("seed", range(8))
def test_it_finds_the_best_of_a_table(seed: int) -> None:
    """Of 720 candidates, with the trials that a kernel gets in a session."""
    asked = run(Search([FIRST, SECOND], seed), 96)
    assert len(asked) == 96
    gains = [gain(candidate) for candidate in asked]
    assert max(gains[:48]) >= BEST - 0.05
    assert max(gains) == BEST


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 8, 50])
def test_nothing_is_asked_twice(batch: int) -> None:
    search = Search([FIRST, SECOND], seed=1)
    keys = [candidate.key for candidate in run(search, 150, batch)]
    assert len(keys) == len(set(keys)) == 150


def test_what_was_asked_and_not_told_is_not_asked_again() -> None:
    search = Search([FIRST, SECOND], seed=1)
    keys = [candidate.key for _ in range(5) for candidate in search.ask(4)]
    assert len(keys) == len(set(keys)) == 20


def test_the_same_seed_asks_the_same() -> None:
    first, again, other = (
        [candidate.key for candidate in run(Search([FIRST, SECOND], seed), 60)] for seed in (3, 3, 4)
    )
    assert first == again
    assert first != other


def test_it_ends_when_all_is_known() -> None:
    few = {"order": ("rows", "columns"), "turns": (0, 1, 2)}
    start = proposed("gemm", few)
    search = Search([start], seed=0)
    asked = []
    while found := search.ask(4):
        for candidate in found:
            search.tell(candidate, few, 1.0)
        asked += found
        assert len(asked) <= 5
    assert len({candidate.key for candidate in asked}) == 5  # all but the first
    assert search.ask(4) == []


def test_a_template_without_choices_is_no_search() -> None:
    assert Search([proposed("reduction", {"tile": ((1, 16),)})], seed=0).ask(8) == []


def test_hints_come_first() -> None:
    search = Search([FIRST, SECOND], seed=0)
    hint = Candidate("gemm", {**FIRST.candidate.decisions, "turns": 4})
    assert search.hint(hint)
    asked = search.ask(8)
    assert [candidate.key for candidate in asked[:2]] == [hint.key, SECOND.candidate.key]
    assert not search.hint(hint)
    assert not search.hint(FIRST.candidate)
    assert hint.key not in {candidate.key for candidate in search.ask(8)}


def test_hints_that_there_was_no_place_for_wait() -> None:
    search = Search([FIRST, SECOND], seed=0)
    hints = [Candidate("gemm", {**FIRST.candidate.decisions, "turns": turns}) for turns in (1, 2, 4)]
    assert [search.hint(hint) for hint in hints] == [True] * 3
    assert [candidate.key for each in (2, 1) for candidate in search.ask(each)] == [hint.key for hint in hints]


def test_what_failed_is_left_alone() -> None:
    """All of an option fails: soon it is hardly asked for."""
    search = Search([FIRST], seed=0)
    asked = []
    for _ in range(8):
        for candidate in search.ask(8):
            works = candidate.decisions["order"] == "rows"
            search.tell(candidate, OPTIONS, exp(gain(candidate)) if works else None)
            asked.append(works)
    assert not all(asked[:8])
    assert asked[8:].count(False) <= 4


def test_the_last_word_counts() -> None:
    """A lucky one that was not confirmed is no parent."""
    search = Search([FIRST], seed=0)
    lucky = Candidate("gemm", {**FIRST.candidate.decisions, "tile": (12, 16)})
    other = Candidate("gemm", {**FIRST.candidate.decisions, "tile": (3, 16)})
    search.tell(lucky, OPTIONS, 3.0)
    for tile in (2, 3, 4):
        search.tell(Candidate("gemm", {**other.decisions, "tile": (tile, 16)}), OPTIONS, 1.5)
    search.tell(lucky, OPTIONS, 0.5)
    assert search.knows(lucky.key)
    asked = search.ask(16)
    near = [candidate for candidate in asked if candidate.decisions["tile"] == (12, 16)]
    assert len(near) <= 1  # a change of a better one's tile may come there by chance
