"""Databases merged and exported: nothing twice, nothing lost, nothing overwritten by mistake."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gfcompile.codegen.tuned.database import Database
from gfcompile.codegen.tuned.record import Record, write_record
from gfcompile.errors import UserError
from gfcompile.tuning.exchange import Merged, export, merge
from tests.tuning.records import FAST, fill, trial

B, C = trial(name="b"), trial(name="c", kernel="c")
NOT_AMONG = "exists and is not among the files to merge; add it to them, or give another file"
NO_EXPORT = "exists and is no export of best records; give another file, or remove it"


def read(path: Path) -> list[Record]:
    database = Database.open(path, must_exist=True)
    assert database.problems == []
    return database.records


def test_merge_is_the_union_in_order(tmp_path: Path) -> None:
    one, two, out = (tmp_path / name for name in ("one", "two", "out"))
    fill(one, FAST, B, FAST)
    fill(two, B, C)
    two.open("a").write("damage\n")
    assert merge([one, two], out) == Merged(3, 2, [f"{two}:3: not a whole JSON object; skipped"])
    assert read(out) == [FAST, B, C]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "out", "two"]  # no scratch is left


def test_merge_into_one_of_the_files(tmp_path: Path) -> None:
    one, two, link = (tmp_path / name for name in ("one", "two", "link"))
    fill(one, FAST)
    fill(two, B)
    link.symlink_to(one)
    assert merge([one, two], link) == Merged(2, 0, [])
    assert link.is_symlink()
    assert read(one) == [FAST, B]
    assert merge([one], one) == Merged(2, 0, [])


def test_merge_overwrites_nothing_that_it_does_not_read(tmp_path: Path) -> None:
    one, out = tmp_path / "one", tmp_path / "out"
    fill(one, FAST)
    fill(out, B)
    for _ in range(2):
        before = out.read_bytes()
        with pytest.raises(UserError) as caught:
            merge([one], out)
        assert str(caught.value) == f"{out}: {NOT_AMONG}"
        assert out.read_bytes() == before
        out.write_text("something else")


def test_merge_of_what_is_not_there_makes_nothing(tmp_path: Path) -> None:
    missing, out = tmp_path / "missing", tmp_path / "out"
    with pytest.raises(UserError) as caught:
        merge([missing], out)
    assert str(caught.value) == f"{missing}: does not exist; give the file of a tuning database"
    assert list(tmp_path.iterdir()) == []


def test_a_merge_that_cannot_be_written_leaves_all_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = tmp_path / "one"
    fill(one, FAST, FAST)
    before = one.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError) as caught:
        merge([one], one)
    assert str(caught.value) == f"{one}: cannot be written (No space left on device); give another file"
    assert one.read_bytes() == before
    assert list(tmp_path.iterdir()) == [one]
    elsewhere = tmp_path / "no" / "out"
    with pytest.raises(UserError) as caught:
        merge([one], elsewhere)
    assert str(caught.value) == f"{elsewhere}: cannot be written (No such file or directory); give another file"


def database() -> Database:
    wrong = {"failure": "wrong", "decisions": {"tile": (1, 8)}}
    unused = [trial(ratio=9.0, **each) for each in ({"kind": "emulated"}, {"versions": "old"}, wrong)]
    alone = [trial(kernel="e", kind="emulated"), trial(kernel="r", kind="ranked"), trial(kernel="s", ratio=1.0)]
    slower = trial(ratio=1.5, decisions={"tile": (2, 8)})
    return Database(records=[*unused, C, slower, FAST, trial(target="another"), *alone])


def test_export_holds_the_best_measured_one_of_each_kernel_and_target_sorted(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    assert export(database(), out) == 3
    assert read(out) == [trial(target="another"), C, FAST] == sorted(read(out), key=lambda each: each.target)
    text = out.read_bytes()
    shuffled = Database(records=database().records[::-1])
    assert export(shuffled, out) == 3  # over the earlier one
    assert out.read_bytes() == text


def test_export_of_one_target_and_of_all_that_was_measured(tmp_path: Path) -> None:
    assert export(database(), tmp_path / "one", target="another") == 1
    assert read(tmp_path / "one") == [trial(target="another")]
    assert export(database(), tmp_path / "none", target="nowhere") == 0
    assert read(tmp_path / "none") == []
    assert export(database(), tmp_path / "all", only_best=False) == 6
    assert {(each.kind, each.versions) for each in read(tmp_path / "all")} == {("measured", FAST.versions)}
    assert [each.failure for each in read(tmp_path / "all") if each.failure] == ["wrong"]


@pytest.mark.parametrize(
    "records",
    [[FAST, trial(ratio=1.5)], [trial(kind="emulated")], [trial(kind="ranked")], [trial(failure="x")]],
)
def test_export_overwrites_no_database_of_trials(tmp_path: Path, records: list[Record]) -> None:
    out = tmp_path / "out"
    fill(out, *records)
    before = out.read_bytes()
    with pytest.raises(UserError) as caught:
        export(database(), out)
    assert str(caught.value) == f"{out}: {NO_EXPORT}"
    assert out.read_bytes() == before


def test_export_overwrites_no_damaged_or_other_file(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_bytes(write_record(FAST) + b"damage\n")
    with pytest.raises(UserError) as caught:
        export(database(), out)
    assert str(caught.value) == f"{out}: {NO_EXPORT}"
    out.write_text("something else")
    with pytest.raises(UserError, match="not a tuning database"):
        export(database(), out)
    assert out.read_text() == "something else"
