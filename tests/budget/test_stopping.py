"""How far a search is, and what is left of one that is stopped."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from gfcompile.budget import asking
from gfcompile.budget.arenas import Arenas, Placed
from gfcompile.budget.front import Candidate, most_asked, search
from gfcompile.budget.page import about
from gfcompile.budget.planner import UNMEASURED, Planner, Stopped
from gfcompile.budget.score import POINTS
from gfcompile.cli import main
from gfcompile.report.units import in_bytes
from gfcompile.settings.planning import Choice
from gfcompile.settings.schema import Request
from tests.budget.nets import small
from tests.budget.test_search import planner_of

Capture = pytest.CaptureFixture[str]
STOPPED = r"the search was stopped with (\d+) of at most (\d+) plans placed: the best of these that fits; a whole search may find a better one"  # noqa: E501
OPTIONS = ["--input", "2x2x12x12", "--layers", "2", "--r", "2", "--sparse", "none"]


@pytest.fixture(scope="module")
def planner() -> Planner:
    return planner_of(small(), Request(layers=2), (2,))


@pytest.fixture(scope="module")
def measured() -> Planner:
    return planner_of(small(), Request(layers=1), (2,), measured=True)


@pytest.fixture
def planner_of_one(measured: Planner) -> Planner:
    """Of one layer, nothing placed."""
    measured.arenas.known.clear()
    return measured


@pytest.fixture
def interrupt_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Ctrl-C while the plan of this number is placed; what is known already takes no time and is not counted."""
    numbers: list[int] = []
    place = Arenas.__call__

    def interrupted(self: Arenas, choices: object) -> Placed:
        if len(self.known) + 1 in numbers and asking.key_of(choices) not in self.known:  # type: ignore[arg-type]
            raise KeyboardInterrupt
        return place(self, choices)  # type: ignore[arg-type]

    monkeypatch.setattr(Arenas, "__call__", interrupted)
    return numbers


def test_no_search_asks_more_than_it_says() -> None:
    rng = random.Random(2)
    reached = set()
    for count in range(1, 200):
        row = [Candidate((index,), 0, 0, 200 - index) for index in range(count)]
        for _ in range(20):
            first, asked = rng.randint(0, count), set()

            def fits(each: Candidate, first: int = first, asked: set[Candidate] = asked) -> bool:
                asked.add(each)
                return 200 - each.points >= first or rng.random() < 0.1

            search(row, fits)
            assert len(asked) <= most_asked(count)
            if len(asked) == most_asked(count):
                reached.add(count)
    assert len(reached) > 50, "it is no larger than it must be"


@pytest.mark.slow
def test_progress_says_how_far_and_what_was_found(planner_of_one: Planner, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    planner = planner_of_one
    monkeypatch.setattr(planner, "progress", said.append)
    found = planner.find(10**7).chosen
    assert found.placed is not None
    most = len(planner.front)
    assert said[0] == f"placing plan 1 of at most {most}"
    smallest = in_bytes(min(placed.arena_bytes for placed in planner.arenas.known.values()))
    line = re.fullmatch(
        rf"placing plan 2 of at most {most}, about \d+ s left, best so far: score 0\.000, arena (.*)", said[1]
    )
    assert line is not None
    assert line[1] == smallest
    assert said.pop() == "placing the chosen plan from a trace of its own"
    assert len(planner.arenas.known) == len(said) <= most


@pytest.mark.slow
def test_a_stopped_search_keeps_its_best(planner: Planner, interrupt_at: list[int]) -> None:
    smallest = min(planner.front, key=lambda each: each.bytes)
    memory = planner.arenas(planner.choices(smallest)).arena_bytes
    interrupt_at.append(3)  # the best does not fit, and the second best is never placed
    with pytest.raises(Stopped) as stop:
        planner.find(memory)
    found = stop.value.found
    assert found.chosen.placed is not None
    assert found.chosen.placed.arena_bytes == memory
    counted = re.fullmatch(STOPPED, found.stopped or "")
    assert counted is not None
    assert counted.groups() == ("1", str(len(planner.front)))
    assert about(found)[0] == found.stopped
    fitting = [row for row in found.rows if row.placed is not None and row.placed.arena_bytes <= memory]
    assert found.chosen.score == max(row.score for row in fitting)


def test_a_good_plan_is_placed_early(planner: Planner, interrupt_at: list[int]) -> None:
    """The first that is tried after the smallest, if by its estimate it should fit."""
    arenas = {each: planner.arenas(planner.choices(each)).arena_bytes for each in planner.front}
    memory = sorted(set(arenas.values()))[-2]
    smallest = min(planner.front, key=lambda each: each.bytes)
    best = next(each for each in planner.front if arenas[each] <= memory)
    planner.arenas.known.clear()
    interrupt_at.append(3)
    with pytest.raises(Stopped) as stop:
        planner.find(memory)
    assert stop.value.found.chosen.score > smallest.points / POINTS
    interrupt_at.clear()
    assert planner.find(memory).chosen.choices == planner.choices(best)


def test_a_search_that_has_nothing_yet_is_only_interrupted(planner_of_one: Planner, interrupt_at: list[int]) -> None:
    interrupt_at.append(1)
    with pytest.raises(KeyboardInterrupt) as stop:
        planner_of_one.find(10**7)
    assert not isinstance(stop.value, Stopped)


@pytest.mark.slow
def test_stopped_after_the_search(measured: Planner, monkeypatch: pytest.MonkeyPatch) -> None:
    found = measured.find(10**7)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gfcompile.budget.planner.measure_plan", interrupted)
    with pytest.raises(Stopped) as stop:
        measured.measured(found)
    assert stop.value.found.chosen == found.chosen
    assert stop.value.found.stopped == UNMEASURED


@pytest.mark.slow
def test_the_command_writes_the_best(capsys: Capture, tmp_path: Path, interrupt_at: list[int]) -> None:
    torch.save(small()[0], tmp_path / "net.pt")
    out = tmp_path / "plan.toml"
    command = ["plan", str(tmp_path / "net.pt"), *OPTIONS, "--memory", "1MB", "--out", str(out), "--quiet"]
    interrupt_at.append(1)
    assert main(command) == 130
    assert capsys.readouterr().err == "gfcompile: interrupted; no artifact was left half-written\n"
    assert not out.exists()
    interrupt_at[:] = [2]
    assert main(command) == 130
    text = capsys.readouterr().out
    sentence = json.loads(out.with_suffix(".json").read_text())["stopped"]
    assert re.fullmatch(STOPPED, sentence)
    assert sentence in text
    assert f"# {sentence}\n" in out.read_text()
    assert "wrote" in text.splitlines()[-1]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("becomes", ["nothing", "an error"])
def test_an_interrupt_that_is_lost_ends_the_search(
    planner: Planner, monkeypatch: pytest.MonkeyPatch, becomes: str
) -> None:
    """Python drops one that comes while an object is freed; of others TVM makes errors."""

    class Freed:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    place = Arenas.__call__

    def interrupted(self: Arenas, choices: Mapping[str, Choice]) -> Placed:
        if len(self.known) == 1 and asking.key_of(choices) not in self.known:
            Freed()
            if becomes == "an error":
                raise RuntimeError
        return place(self, choices)

    smallest = min(planner.front, key=lambda each: each.bytes)
    planner.arenas.known.clear()
    memory = planner.arenas(planner.choices(smallest)).arena_bytes
    monkeypatch.setattr(Arenas, "__call__", interrupted)
    with pytest.raises(Stopped) as stop:
        planner.find(memory)
    assert stop.value.found.chosen.placed is not None
    assert len(planner.arenas.known) == (1 if becomes == "an error" else 2)


MOMENTS = 8


def start_in_copy(planner: Planner, folder: Path, command: list[str]) -> int:
    """A copy of this process that makes a plan; returns when its search has begun."""
    folder.mkdir()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.read(reading, 1)
        os.close(reading)
        os.close(writing)
        return pid

    def progress(text: str) -> None:
        sys.stderr.write(text)
        os.write(writing, b".")

    code = 1
    try:
        sys.stdout = sys.stderr = (folder / "said").open("w")
        signal.signal(signal.SIGINT, signal.default_int_handler)
        planner.progress = progress
        code = main([*command, "--out", str(folder / "plan.toml")])
    finally:
        sys.stderr.flush()
        os._exit(code)


@pytest.mark.slow
def test_real_signals(planner: Planner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At any moment of a search: within functions that TVM calls, while objects are freed, while files are written."""
    torch.save(small()[0], tmp_path / "net.pt")
    command = ["plan", str(tmp_path / "net.pt"), *OPTIONS, "--memory", "1MB"]
    planner.arenas.known.clear()
    monkeypatch.setattr("gfcompile.api.make_planner", lambda *_: planner)
    whole, began = start_in_copy(planner, tmp_path / "whole", command), time.monotonic()
    assert os.waitpid(whole, 0)[1] == 0
    took, rng, stopped = time.monotonic() - began, random.Random(0), 0
    for moment in range(MOMENTS):
        folder = tmp_path / str(moment)
        pid = start_in_copy(planner, folder, command)
        time.sleep(took * rng.uniform(moment, moment + 1) / MOMENTS)
        os.kill(pid, signal.SIGINT)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        words, plan = (folder / "said").read_text(), folder / "plan.json"
        assert "Traceback" not in words
        sentence = json.loads(plan.read_text())["stopped"] if plan.exists() else "no plan"
        if code == 0:
            assert sentence is None, "the search had ended"
            continue
        assert code == 130, words
        stopped += re.fullmatch(STOPPED, sentence or "") is not None
        if not plan.exists():
            assert "best so far" not in words
            assert words.endswith("gfcompile: interrupted; no artifact was left half-written\n")
    assert stopped
