"""Which trial the compiler takes: one that is surely better, of the layer that is nearest to the user."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gfcompile.codegen.tuned import database as database_module
from gfcompile.codegen.tuned.database import Database, Databases, user_path
from gfcompile.errors import UserError
from tests.tuning.records import FAST, KERNEL, TARGET, fill, trial


def test_only_trials_of_this_kernel_target_and_versions_count() -> None:
    others = [trial(kernel="1"), trial(target="t"), trial(versions="tvm 0.26.0, templates 1")]
    database = Database(records=[*others, FAST])
    assert database.tried(KERNEL, TARGET) == [FAST]
    assert Database(records=others).best(KERNEL, TARGET) is None


@pytest.mark.parametrize(
    ("changes", "counts"),
    [
        ({}, True),
        ({"failure": "wrong result"}, False),
        ({"kind": "emulated"}, False),
        ({"kind": "ranked"}, False),
        ({"ratio": None}, False),
        ({"spread": None}, False),
        ({"ratio": 1.02, "spread": 0.0}, True),
        ({"ratio": 1.019, "spread": 0.0}, False),
        ({"ratio": 1.5, "spread": 0.5}, False),
        ({"ratio": 1.5, "spread": 0.49}, True),
        ({"ratio": 0.5, "spread": 0.0}, False),
    ],
)
def test_the_best_is_surely_better(changes: dict[str, Any], counts: bool) -> None:
    record = trial(**changes)
    assert Database(records=[record]).best(KERNEL, TARGET) == (record if counts else None)


def test_the_best_has_the_highest_ratio_without_its_noise() -> None:
    noisy, quiet = trial(ratio=3.0, spread=1.5), trial(ratio=1.9, spread=0.1)
    emulated = trial(kind="emulated", ratio=9.0)
    database = Database(records=[noisy, quiet, emulated])
    assert database.best(KERNEL, TARGET) == quiet
    assert database.best(KERNEL, TARGET, allow_emulated=True) == emulated
    ranked = Database(records=[trial(kind="ranked", score=100.0)])
    assert ranked.best(KERNEL, TARGET, allow_emulated=True) is None


def test_the_nearest_layer_with_a_best_one_decides() -> None:
    near, far = trial(ratio=1.2), trial(ratio=5.0)
    slow = trial(ratio=1.0, decisions={"tile": (1, 1)})
    assert Databases([Database(records=[near]), Database(records=[far])]).best(KERNEL, TARGET) == near
    assert Databases([Database(records=[slow]), Database(records=[far])]).best(KERNEL, TARGET) == far
    assert Databases([]).best(KERNEL, TARGET) is None


@pytest.mark.parametrize("changes", [{"ratio": 0.9}, {"failure": "crashed", "ratio": None}])
def test_what_the_user_measured_to_be_no_better_is_not_taken_from_afar(changes: dict[str, Any]) -> None:
    far = Database(records=[trial(ratio=5.0)])
    assert Databases([Database(records=[trial(**changes)]), far]).best(KERNEL, TARGET) is None
    emulated = Database(records=[trial(kind="emulated", **changes)])
    assert Databases([emulated, far]).best(KERNEL, TARGET) == far.records[0]


def test_the_layers_are_the_named_file_the_users_own_and_the_shipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "BUNDLED", tmp_path / "bundled")
    monkeypatch.setenv("GFCOMPILE_TUNING", str(tmp_path / "own.jsonl"))
    assert Databases.open().best(KERNEL, TARGET) is None  # none of them is there
    assert Databases.open().problems == []
    for ratio, place in ((2.0, "bundled/b.jsonl"), (3.0, "bundled/a.jsonl"), (4.0, "own.jsonl"), (5.0, "named.jsonl")):
        fill(tmp_path / place, trial(ratio=ratio, name=place))
        chosen = tmp_path / place if place == "named.jsonl" else None
        best = Databases.open(chosen).best(KERNEL, TARGET)
        assert best is not None
        assert best.name == place
    (tmp_path / "own.jsonl").open("a").write("x")
    assert Databases.open().problems == [f"{tmp_path}/own.jsonl:2: not a whole JSON object; skipped"]
    with pytest.raises(UserError, match=r"/no\.jsonl: does not exist; give the file of a tuning database$"):
        Databases.open(tmp_path / "no.jsonl")


def test_where_the_users_own_database_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not user_path().exists()  # tests read none: tests/conftest.py
    monkeypatch.setenv("GFCOMPILE_TUNING", "/chosen/file")
    assert user_path() == Path("/chosen/file")
    monkeypatch.setenv("GFCOMPILE_TUNING", "")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert user_path() == Path("/data/gfcompile/tuning.jsonl")
    monkeypatch.setenv("XDG_DATA_HOME", "")
    monkeypatch.setenv("HOME", "/home/one")
    assert user_path() == Path("/home/one/.local/share/gfcompile/tuning.jsonl")


def test_every_shipped_database_is_whole_and_measured() -> None:
    for path in sorted(database_module.BUNDLED.glob("*.jsonl")):
        database = Database.open(path)
        assert database.problems == []
        assert all(record == database.best(record.kernel, record.target) for record in database.records), path


def test_of_several_trials_of_one_candidate_the_latest_counts(tmp_path: Path) -> None:
    """Wherever it stands: files are merged in any order."""
    other = trial(decisions={"tile": (2, 8)}, ratio=1.5)
    taken_back = trial(failure="not surely faster in its step: 0.90x", ratio=0.9, date="2026-01-01T00:00:00+00:00")
    database = fill(tmp_path / "t.jsonl", taken_back, trial(), other)
    assert database.best(KERNEL, TARGET) == other
    again = trial(ratio=3.0, date="2026-01-02T00:00:00+00:00")
    database.add(again)
    assert database.best(KERNEL, TARGET) == again
