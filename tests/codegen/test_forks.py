"""Work in copies of a process: all of it is done, whatever becomes of the copies."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gfcompile.codegen import forks
from gfcompile.codegen.forks import count_jobs, in_background, promised, share_out
from gfcompile.errors import UserError


@pytest.fixture(autouse=True)
def three_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GFCOMPILE_JOBS", "3")


def list_children() -> set[str]:
    return {pid for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()}


@pytest.fixture(autouse=True)
def no_copy_is_left() -> Iterator[None]:
    before = list_children()  # other tests of this worker may have some
    yield
    assert list_children() <= before


def test_every_piece_is_done_once_and_by_several(tmp_path: Path) -> None:
    def work(number: int) -> None:
        time.sleep(0.01)
        with (tmp_path / str(number)).open("a") as file:
            file.write(f"{os.getpid()}\n")

    share_out(30, work, lambda number: (tmp_path / str(number)).exists())
    who = [(tmp_path / str(number)).read_text().split() for number in range(30)]
    assert all(len(each) == 1 for each in who)
    assert 1 < len({each[0] for each in who}) <= 3


def test_more_pieces_than_a_pipe_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "_AT_ONCE", 7)
    share_out(20, lambda number: (tmp_path / str(number)).touch(), lambda number: (tmp_path / str(number)).exists())
    assert len(list(tmp_path.iterdir())) == 20


@pytest.mark.parametrize("end", ["raises", "is killed", "is stuck"])
def test_what_a_copy_does_not_finish_is_done_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    monkeypatch.setattr(forks, "PATIENCE", 0.3)
    here = os.getpid()

    def work(number: int) -> None:
        if os.getpid() != here:
            if end == "raises":
                raise ValueError(number)
            if end == "is killed":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)
        time.sleep(0.05)  # so that the copies get their pieces
        (tmp_path / str(number)).touch()

    share_out(6, work, lambda number: (tmp_path / str(number)).exists())
    assert len(list(tmp_path.iterdir())) == 6


def test_what_fails_here_raises_and_leaves_no_copy() -> None:
    here = os.getpid()

    def work(number: int) -> None:
        if os.getpid() == here:
            raise ValueError(f"piece {number}")
        time.sleep(60)

    with pytest.raises(ValueError, match="piece"):
        share_out(4, work, lambda _: False)


def test_a_promise_is_kept_by_a_copy() -> None:
    with promised(lambda: (os.getpid(), "x" * 1_000_000)) as result:
        who, text = result()
    assert who != os.getpid()
    assert len(text) == 1_000_000


@pytest.mark.parametrize("end", ["is killed", "is stuck"])
def test_a_promise_that_a_copy_breaks_is_kept_here(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    monkeypatch.setattr(forks, "PATIENCE", 0.3)
    here = os.getpid()

    def work() -> str:
        if os.getpid() != here:
            if end == "is killed":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)
        return "made here"

    with promised(work) as result:
        assert result() == "made here"


def test_background_work_is_stopped_at_the_end(tmp_path: Path) -> None:
    start = time.monotonic()
    with in_background(lambda: ((tmp_path / "begun").touch(), time.sleep(60))):
        while not (tmp_path / "begun").exists():
            time.sleep(0.01)
    assert time.monotonic() - start < 50


def test_one_job_is_this_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GFCOMPILE_JOBS", "1")
    with in_background(lambda: (tmp_path / "never").touch()), promised(os.getpid) as result:
        assert result() == os.getpid()
    assert not (tmp_path / "never").exists()
    done: list[int] = []
    share_out(3, done.append, lambda number: number in done)
    assert done == [0, 1, 2]


@pytest.mark.parametrize("given", ["0", "-1", "two"])
def test_how_many_jobs(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("GFCOMPILE_JOBS", given)
    with pytest.raises(UserError) as caught:
        count_jobs()
    assert str(caught.value) == f"GFCOMPILE_JOBS={given}: is no number of processes; give 1 or more, or leave it out"
    monkeypatch.delenv("GFCOMPILE_JOBS")
    assert count_jobs() == len(os.sched_getaffinity(0))
