"""The database of trials: what is written comes back, and damage costs one line."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import re
import time
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gfcompile.codegen.tuned import database as database_module
from gfcompile.codegen.tuned.database import Database
from gfcompile.codegen.tuned.record import Record, write_record
from gfcompile.errors import ContractError, UserError
from tests.tuning.records import FAST, KERNEL, TARGET, any_record, fill, trial


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "some" / "tuning.jsonl"


def write_raw(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def changed(**values: Any) -> bytes:
    """The line of FAST with other values; what is dropped has the value `...`."""
    fields = {**json.loads(write_record(FAST)), **values}
    return json.dumps({name: value for name, value in fields.items() if value is not ...}).encode()


def test_a_missing_file_is_an_empty_database(file: Path) -> None:
    database = Database.open(file)
    assert (database.path, database.records, database.problems) == (file, [], [])
    assert not file.exists()


def test_what_is_added_is_there_at_once_and_for_the_next(file: Path) -> None:
    database = fill(file, FAST, trial(name="b"))
    assert database.records == Database.open(file).records == [FAST, trial(name="b")]
    assert file.read_text().splitlines()[0].startswith('{"kernel": "00c0ffee00c0ffee", "name": "conv", ')
    again = Database.open(file).records[0]
    assert again.decisions["tile"] == (4, 8)
    assert isinstance(again.decisions["tile"], tuple)


def test_a_database_in_memory_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    database = Database()
    database.add(FAST)
    assert database.best(KERNEL, TARGET) == FAST
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@given(st.lists(any_record(), max_size=4))
def test_any_record_comes_back(tmp_path_factory: pytest.TempPathFactory, records: list[Record]) -> None:
    path = tmp_path_factory.mktemp("any") / "t.jsonl"
    lines = [write_record(record) for record in records]
    path.write_bytes(b"".join(lines))
    database = Database.open(path)
    assert (database.records, database.problems) == (records, [])
    assert all(line.count(b"\n") == 1 and line.isascii() for line in lines)


@pytest.mark.slow
@given(st.lists(any_record(), min_size=1, max_size=3), st.data())
def test_a_cut_loses_one_record_and_the_next_is_safe(
    tmp_path_factory: pytest.TempPathFactory, records: list[Record], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("cut") / "t.jsonl"
    lines = [write_record(record) for record in records]
    whole = b"".join(lines)
    at = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:at])
    kept = next(i for i in range(len(lines), -1, -1) if len(b"".join(lines[:i])) <= at)
    rest = whole[:at][len(b"".join(lines[:kept])) :]
    is_complete = rest + b"\n" in lines[kept : kept + 1]  # but for its newline
    lost = bool(rest) and not is_complete
    problems = [f"{path}:{kept + 1}: not a whole JSON object; skipped"] if lost else []
    expected = records[: kept + is_complete]
    database = Database.open(path)
    assert (database.records, database.problems) == (expected, problems)
    database.add(FAST)
    database = Database.open(path)
    assert (database.records, database.problems) == ([*expected, FAST], problems)


GARBAGE = st.binary(min_size=1, max_size=30).filter(lambda line: line.strip() and b"\n" not in line)


@pytest.mark.slow
@given(st.lists(st.none() | GARBAGE, max_size=6))
def test_garbage_is_reported_by_its_line(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes | None]) -> None:
    path = tmp_path_factory.mktemp("garbage") / "t.jsonl"
    content = [write_record(FAST), *(write_record(FAST) if line is None else line + b"\n" for line in lines)]
    path.write_bytes(b"".join(content))
    database = Database.open(path)
    assert database.records == [FAST] * (1 + lines.count(None))
    numbers = [number for number, line in enumerate(lines, 2) if line is not None]
    assert [problem.split(":")[1] for problem in database.problems] == list(map(str, numbers))
    assert all(problem.endswith("; skipped") for problem in database.problems)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"garbage", "not a whole JSON object"),
        (b"[1, 2]", "not a whole JSON object"),
        (b"\xff\xfe{}", "not a whole JSON object"),
        (b"\0\0\0", "not a whole JSON object"),
        (b"[" * 100_000, "not a whole JSON object"),
        (b"1" * 10_000, "not a whole JSON object"),
        (changed(seconds=float("nan")), "not a whole JSON object"),
        (changed(kernel=...), "lacks 'kernel'"),
        (changed(kind=..., date=...), "lacks 'kind', lacks 'date'"),
        (changed(colour="red"), "has the unknown field 'colour'"),
        (changed(kernel=7), "kernel is 7; it should be a text"),
        (changed(name=None), "name is null; it should be a text"),
        (changed(kind="guessed"), 'kind is "guessed"; it should be measured, emulated or ranked'),
        (changed(kind=["measured"]), 'kind is ["measured"]; it should be measured, emulated or ranked'),
        (changed(seconds="1"), 'seconds is "1"; it should be a number above 0 or null'),
        (changed(seconds=True), "seconds is true; it should be a number above 0 or null"),
        (changed(reference_seconds=0), "reference_seconds is 0; it should be a number above 0 or null"),
        (
            changed(ratio=10**400),
            "ratio is 1000000000000000000000000000000000000...; it should be a number above 0 or null",
        ),
        (
            changed().replace(b'"ratio": 2.0', b'"ratio": 1e999'),
            "ratio is Infinity; it should be a number above 0 or null",
        ),
        (changed(spread=-0.1), "spread is -0.1; it should be a number of at least 0 or null"),
        (changed(failure=1), "failure is 1; it should be a text or null"),
        (changed(score="x"), 'score is "x"; it should be a number or null'),
        (changed(machine=[]), "machine is []; it should be values by name"),
        (
            changed(decisions=[1]),
            "decisions is [1]; it should be whole numbers, texts or lists of whole numbers by name",
        ),
        (
            changed(decisions={"a": 1.5}),
            'decisions is {"a": 1.5}; it should be whole numbers, texts or lists of whole numbers by name',
        ),
        (
            changed(decisions={"a": [True]}),
            'decisions is {"a": [true]}; it should be whole numbers, texts or lists of whole numbers by name',
        ),
        (changed(kind="ranked"), "a ranked one has none of seconds, reference_seconds, ratio, spread"),
    ],
)
def test_what_is_said_of_a_bad_line(file: Path, line: bytes, problem: str) -> None:
    write_raw(file, write_record(FAST) + line + b"\n\n" + write_record(FAST))
    database = Database.open(file)
    assert database.records == [FAST, FAST]
    assert database.problems == [f"{file}:2: {problem}; skipped"]


def test_a_score_need_not_be_there_and_whole_numbers_are_numbers(file: Path) -> None:
    write_raw(file, changed(score=..., seconds=1))
    (record,) = Database.open(file).records
    assert record == trial(seconds=1.0)
    assert isinstance(record.seconds, float)


@pytest.mark.parametrize("content", [b"# a title\nand text\n", b"\x7fELF\0\0\1", b'{"name": "other"}\n', b"\n\nx"])
def test_another_file_is_no_database(file: Path, content: bytes) -> None:
    wanted = f"{write_raw(file, content)}: not a tuning database, no line of it is a record; "
    with pytest.raises(UserError, match=f"^{re.escape(wanted)}give another file, or one that is not there yet$"):
        Database.open(file)


@pytest.mark.parametrize("content", [b"", b"\n", b'{"ker', write_record(FAST)[:60]])
def test_an_empty_one_and_one_cut_in_its_first_record_are_databases(file: Path, content: bytes) -> None:
    write_raw(file, content)
    assert fill(file, FAST).records == Database.open(file).records == [FAST]


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        Database.open(tmp_path)
    assert str(caught.value) == f"{tmp_path}: is a directory; give the file of a tuning database"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UserError) as caught:
        Database.open(pipe)
    assert str(caught.value) == f"{pipe}: not a regular file; give the file of a tuning database"
    inside = write_raw(tmp_path / "file", b"") / "tuning.jsonl"
    with pytest.raises(UserError) as caught:
        Database.open(inside)
    assert str(caught.value) == f"{inside}: cannot be read (Not a directory); give the file of a tuning database"
    missing = tmp_path / "missing"
    with pytest.raises(UserError) as caught:
        Database.open(missing, must_exist=True)
    assert str(caught.value) == f"{missing}: does not exist; give the file of a tuning database"


def test_a_full_disk_is_said_and_costs_no_later_record(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = fill(file, FAST)
    write, calls = os.write, []

    def half(descriptor: int, data: bytes) -> int:
        calls.append(data)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data[: len(data) // 2])

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", half)
        with pytest.raises(UserError) as caught:
            database.add(trial(name="lost"))
    assert str(caught.value) == f"{file}: cannot be written (No space left on device); give another file"
    database.add(trial(name="next"))
    again = Database.open(file)
    assert again.records == database.records == [FAST, trial(name="next")]
    assert again.problems == [f"{file}:2: not a whole JSON object; skipped"]


def test_what_was_added_is_on_the_disk(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synchronise, safe = os.fsync, list[bytes]()

    def watched(descriptor: int) -> None:
        synchronise(descriptor)
        safe.append(file.read_bytes())

    monkeypatch.setattr(os, "fsync", watched)
    fill(file, FAST)
    assert safe == [write_record(FAST)]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"seconds": float("inf")}, "Out of range float values are not JSON compliant"),
        ({"seconds": -1.0}, "seconds is -1.0; it should be a number above 0 or null"),
        ({"machine": {"a": {1}}}, "Object of type set is not JSON serializable"),
        ({"decisions": {"tile": [1, 2]}}, "JSON changes Record("),
        ({"machine": {1: 2}}, "JSON changes Record("),
    ],
)
def test_a_record_that_would_not_come_back_is_our_mistake(file: Path, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ContractError, match=f"^a trial of conv cannot be kept: {re.escape(reason)}"):
        fill(file, trial(**changes))
    assert not file.exists()


def add_records(path: Path, count: int, name: str) -> None:
    database = Database(path)
    for number in range(count):
        database.add(replace(FAST, name=f"{name} {number}", failure="x" * (37 * number % 9000)))


def start_writer(path: Path, count: int, name: str) -> BaseProcess:
    """A process of its own, forked: it need not load anything again."""
    writer = multiprocessing.get_context("fork").Process(target=add_records, args=(path, count, name))
    writer.start()
    return writer


def test_two_tuners_may_add_to_one_file(file: Path) -> None:
    writers = [start_writer(file, 60, name) for name in "ab"]
    for writer in writers:
        writer.join(120)
    assert [writer.exitcode for writer in writers] == [0, 0]
    database = Database.open(file)
    assert database.problems == []
    for name in "ab":  # all of each, in its order
        assert [each.name for each in database.records if each.name[0] == name] == [f"{name} {i}" for i in range(60)]


def test_a_killed_tuner_costs_no_record_of_the_next(file: Path) -> None:
    writer = start_writer(file, 1_000_000, "killed")
    while not file.exists() or file.stat().st_size < 20_000:
        assert writer.is_alive()
        time.sleep(0.01)
    writer.kill()
    writer.join()
    before = Database.open(file)
    fill(file, FAST)
    after = Database.open(file)
    assert after.records == [*before.records, FAST]
    assert [each.name for each in before.records] == [f"killed {i}" for i in range(len(before.records))]
    assert len(after.problems) <= 1


def test_one_who_waited_while_the_file_was_replaced_adds_to_the_new_one(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = fill(file, FAST)
    other = write_raw(file.with_name("other"), write_record(trial(name="merged")))
    flock = database_module.fcntl.flock

    def replaced_meanwhile(descriptor: int, how: int) -> None:
        flock(descriptor, how)
        if other.exists():
            other.replace(file)

    monkeypatch.setattr(database_module.fcntl, "flock", replaced_meanwhile)
    database.add(trial(name="late"))
    assert [each.name for each in Database.open(file).records] == ["merged", "late"]
