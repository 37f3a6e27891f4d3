"""Stand-ins for what builds and runs trials: nothing is built, and a table says what is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tvm

from gfcompile.targets import Target
from gfcompile.tuning import session as session_module
from gfcompile.tuning.builders import Built, Make
from gfcompile.tuning.space import Candidate
from gfcompile.tuning.trial import Kind, Measurement, TrialFailed

Table = Callable[[Candidate, int], Measurement]  # of a candidate, and how often it ran before
SECONDS = 0.01  # of the untuned kernel


def measured(ratio: float, spread: float = 0.0, error: float = 0.0) -> Measurement:
    """A run of four turns, whose middle half is so wide."""
    turns = (ratio - spread, ratio, ratio, ratio + spread)
    return Measurement(error, tuple(SECONDS / each for each in turns), (SECONDS,) * 4)


class Pool:
    """Draws candidates where a real pool builds them; the file names what it is."""

    def __init__(self, target: Target, workers: int, folder: Path, form: Kind, make: Make) -> None:
        self._target, self._folder, self._make = target, folder, make
        self._results: list[tuple[Candidate, Built | TrialFailed]] = []
        self.built: dict[Path, Candidate] = {}
        self.left: list[Candidate] = []  # when it was closed
        self.count = 0

    def submit(self, key: Candidate, function_json: str, candidate: Candidate) -> None:
        try:
            drawn = self._make(tvm.ir.load_json(function_json), self._target, candidate)
        except TrialFailed as failure:
            self._results.append((key, failure))
            return
        path = self._folder / str(self.count) / "trial"
        self.count += 1
        path.parent.mkdir()
        self.built[path] = drawn.candidate
        self._results.append((key, Built(path, drawn.candidate, drawn.options)))

    def __iter__(self) -> Iterator[tuple[Candidate, Built | TrialFailed]]:
        results, self._results = self._results, []
        return iter(results)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.left = [candidate for path, candidate in self.built.items() if path.parent.exists()]


class Runner:
    """Looks up what it measures, and counts."""

    form: Kind = "program"

    def __init__(self, table: Table, kind: str = "measured") -> None:
        self.table, self.kind = table, kind
        self.pool: Pool | None = None
        self.runs: list[Candidate] = []
        self.machine: dict[str, Any] = {"cpu": "a table"}

    def count(self, candidate: Candidate) -> int:
        return sum(each.key == candidate.key for each in self.runs)

    def run(self, built: Path, timeout: float) -> Measurement:
        assert self.pool is not None
        candidate = self.pool.built[built]
        before = self.count(candidate)
        self.runs.append(candidate)
        return self.table(candidate, before)

    def boards(self) -> int:
        return 1

    def read_machine(self) -> dict[str, Any]:
        return self.machine

    def close(self) -> None:
        """Nothing is open."""


def stand_in(monkeypatch: pytest.MonkeyPatch, table: Table, kind: str = "measured") -> Runner:
    """Sessions build nothing from now on; the runner that goes with that."""
    runner = Runner(table, kind)

    def make_pool(*arguments: Any) -> Pool:
        runner.pool = Pool(*arguments)
        return runner.pool

    monkeypatch.setattr(session_module, "BuildPool", make_pool)
    return runner
