"""Tuned kernels inside their step: compared with the untuned ones there, and taken back where they are slower."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from gfcompile.codegen.tuned.database import Database, Databases, target_key
from gfcompile.codegen.tuned.record import Record
from gfcompile.codegen.tuned.tasks import Task, list_tasks
from gfcompile.frontend.losses import resolve_loss
from gfcompile.job import Job, Lowered
from gfcompile.settings.schema import Request
from gfcompile.stages import lower_job
from gfcompile.tuning import in_step
from gfcompile.tuning.in_step import Ratio, compare_in_step, reject_slower
from gfcompile.tuning.space import list_templates
from tests.lean import place_lean
from tests.models.zoo import ZOO
from tests.tuning.forged import NATIVE, forge
from tests.tuning.records import fill

SURE, UNSURE = Ratio(1.05, low=1.01, high=1.09), Ratio(1.01, low=0.99, high=1.03)


@pytest.fixture(scope="module")
def lowered() -> Lowered:
    return lower_job(
        Job(ZOO["plain"](), (torch.zeros(2, 3, 16, 16),), resolve_loss("cross_entropy"), Request(layers=2))
    )


@pytest.fixture(scope="module")
def tasks(lowered: Lowered) -> list[Task]:
    found = list_tasks(planned.program for planned in place_lean(lowered, NATIVE).programs.values())
    return [task for task in found if list_templates(task.function, NATIVE)]


@pytest.mark.slow
def test_two_steps_take_turns(
    lowered: Lowered, tasks: list[Task], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_step, "place", place_lean)
    records = [forge(task) for task in tasks[:2]]
    known = Databases((fill(tmp_path / "db.jsonl", *records),))
    found = compare_in_step(lowered, NATIVE, known)
    assert {name: record for name, (record, _) in found.items()} == {record.name: record for record in records}
    assert all(0 < ratio.low <= ratio.value <= ratio.high for _, ratio in found.values())


def test_a_ratio_is_the_median_and_a_range_that_noise_does_not_leave() -> None:
    turns = [*[1.1] * 14, *[1.2] * 14, *[9.0] * 13]
    assert Ratio.of(turns) == Ratio(1.2, low=1.1, high=1.2)
    chance = np.random.default_rng(0)
    found = [Ratio.of(1 + 0.1 * chance.standard_normal(in_step._STEPS)) for _ in range(400)]
    assert 0.9 < np.mean([each.low <= 1 <= each.high for each in found]) < 0.99


@pytest.mark.slow
def test_nothing_tuned_is_nothing_to_compare(lowered: Lowered) -> None:
    assert compare_in_step(lowered, NATIVE, Databases(())) == {}


def test_what_is_slower_is_taken_back_and_the_next_looked_at(
    lowered: Lowered, tasks: list[Task], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, other = tasks[:2]
    best, second, good = forge(task, ratio=3.0), forge(task, 1, ratio=2.0), forge(other, ratio=2.0)
    database = fill(tmp_path / "db.jsonl", best, second, good)
    asked: list[set[str]] = []

    def compare(_lowered: Lowered, _target: object, known: Databases) -> dict[str, tuple[Record, Ratio]]:
        found = [known.best(each.kernel, target_key(NATIVE)) for each in (task, other)]
        asked.append({str(record.ratio) for record in found if record is not None})
        return {record.name: (record, UNSURE if record == best else SURE) for record in found if record is not None}

    monkeypatch.setattr(in_step, "compare_in_step", compare)
    assert reject_slower(lowered, NATIVE, database) == [(task.name, UNSURE.value)]
    assert asked == [{"3.0", "2.0"}, {"2.0"}]
    again = Database.open(tmp_path / "db.jsonl")
    assert again.best(task.kernel, target_key(NATIVE)) == second
    assert again.best(other.kernel, target_key(NATIVE)) == good
    assert again.records[-1].failure == "not surely faster in its step: 1.01x"


def test_what_is_slower_in_every_round_stays_untuned(
    lowered: Lowered, tasks: list[Task], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = next(each for each in tasks if len(list_templates(each.function, NATIVE)[0].options.get("tile", ())) > 5)
    database = fill(tmp_path / "db.jsonl", *(forge(task, at, ratio=2.0 + at) for at in range(4)))

    def compare(_lowered: Lowered, _target: object, known: Databases) -> dict[str, tuple[Record, Ratio]]:
        record = known.best(task.kernel, target_key(NATIVE))
        return {} if record is None else {task.name: (record, UNSURE)}

    monkeypatch.setattr(in_step, "compare_in_step", compare)
    assert len(reject_slower(lowered, NATIVE, database)) == 3
    assert database.best(task.kernel, target_key(NATIVE)) is None
