"""What tests share: made once, whole or not at all; and which cases run when."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.cpu_times import summarise
from tests.selection import fast, often
from tests.store import Store


def test_what_is_there_is_not_made_again(tmp_path: Path) -> None:
    made: list[Path] = []

    def make(place: Path) -> None:
        made.append(place)
        place.write_text("dear")

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: Store(tmp_path).get("thing", make).read_text(), range(8)))
    assert found == ["dear"] * 8
    assert len(made) == 1


def test_a_failure_leaves_nothing_that_looks_whole(tmp_path: Path) -> None:
    store = Store(tmp_path)

    def fail(place: Path) -> None:
        place.mkdir()
        (place / "half").touch()
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        store.get("thing", fail)
    assert not (tmp_path / "thing").exists()
    assert [path.name for path in store.get("thing", Path.mkdir).iterdir()] == []


def test_cases_that_are_not_kept_wait() -> None:
    cases = often([("a", 1), ("b", 2)], [("b", 2)])
    assert [(case.values, [mark.name for mark in case.marks]) for case in cases] == [
        (("a", 1), ["coverage"]),
        (("b", 2), []),
    ]
    assert [[mark.name for mark in case.marks] for case in fast("ab", "a")] == [[], ["slow"]]
    with pytest.raises(AssertionError, match="a case that is not there cannot be kept"):
        often(["a"], ["b"])


def test_a_summary_adds_up(tmp_path: Path) -> None:
    rows = [("tests/a/test_x.py::test_1", 3.0), ("tests/a/test_x.py::test_2", 1.0), ("tests/b/test_y.py::test_3", 2.0)]
    lines = [json.dumps({"test": name, "setup": 0.5, "call": seconds - 0.5}) for name, seconds in rows]
    (tmp_path / "times.jsonl").write_text("\n".join(lines))
    said = summarise(tmp_path / "times.jsonl").splitlines()
    assert said[1] == "      3.0  tests/a/test_x.py::test_1"
    assert "      4.0  tests/a/test_x.py" in said
    assert "      4.0  tests/a" in said
    assert said[-1] == "3 tests, 0.1 CPU minutes"
