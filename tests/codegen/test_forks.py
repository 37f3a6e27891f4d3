"""Work in copies of a process: all of it is done, whatever becomes of the copies."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
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


def do_all_three(folder: Path) -> None:
    """All that there is, with pieces of work that check that they are done."""
    with in_background(lambda: None), promised(lambda: "answer") as result:
        assert result() == "answer"
        share_out(6, lambda number: (folder / str(number)).touch(), lambda number: (folder / str(number)).exists())
    assert len(list(folder.iterdir())) == 6


def wait_for(condition: Callable[[], object]) -> None:
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < 20
        time.sleep(0.01)


def is_working(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def fork_to(work: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return pid


def test_every_piece_is_done_once_and_by_several(tmp_path: Path) -> None:
    def work(number: int) -> None:
        time.sleep(0.01)
        (tmp_path / f"{number}.{os.getpid()}").touch()  # done at once: a copy may be ended right after

    share_out(30, work, lambda number: any(tmp_path.glob(f"{number}.*")))
    who = [[path.suffix for path in tmp_path.glob(f"{number}.*")] for number in range(30)]
    assert all(len(each) == 1 for each in who)
    assert 1 < len({each[0] for each in who}) <= 3


@pytest.mark.slow
def test_more_pieces_than_a_pipe_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "_AT_ONCE", 7)
    share_out(20, lambda number: (tmp_path / str(number)).touch(), lambda number: (tmp_path / str(number)).exists())
    assert len(list(tmp_path.iterdir())) == 20


def test_a_pipe_of_one_page_is_enough() -> None:
    assert forks._AT_ONCE * forks._NUMBER.size <= select.PIPE_BUF


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


def test_an_answer_that_is_cut_short_is_made_here(monkeypatch: pytest.MonkeyPatch) -> None:
    here, whole = os.getpid(), forks._checked

    def checked(content: bytes) -> bytes:
        return whole(content) if os.getpid() == here else whole(content)[: len(content) // 2]

    monkeypatch.setattr(forks, "_checked", checked)
    with promised(lambda: "x" * 1_000_000) as result:
        assert result() == "x" * 1_000_000


def test_a_promise_ends_with_who_wanted_it(tmp_path: Path) -> None:
    def work() -> bytes:
        (tmp_path / "new").write_text(str(os.getpid()))
        (tmp_path / "new").rename(tmp_path / "pid")
        return bytes(1_000_000)  # more than the pipe holds

    def host() -> None:
        with promised(work):
            time.sleep(60)

    pid = fork_to(host)
    wait_for((tmp_path / "pid").exists)
    copy = int((tmp_path / "pid").read_text())
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    wait_for(lambda: not is_working(copy))


def test_copies_take_nothing_more_when_who_shared_is_dead(tmp_path: Path) -> None:
    def work(number: int) -> None:
        time.sleep(0.1)
        (tmp_path / str(number)).write_text(str(os.getpid()))

    pid = fork_to(lambda: share_out(300, work, lambda number: (tmp_path / str(number)).exists()))
    wait_for(lambda: len(list(tmp_path.iterdir())) > 5)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    copies = {int(path.read_text() or pid) for path in tmp_path.iterdir()} - {pid}
    assert copies
    wait_for(lambda: not any(map(is_working, copies)))
    assert len(list(tmp_path.iterdir())) < 50


def test_without_room_for_a_copy_everything_is_done_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fork() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(os, "fork", fork)
    do_all_three(tmp_path)
    assert os.listdir("/proc/self/fd") == before


def test_where_the_system_waits_for_children(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        do_all_three(tmp_path)
        with in_background(lambda: time.sleep(60)):
            pass
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_where_more_files_are_open_than_select_can_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits, pipe = resource.getrlimit(resource.RLIMIT_NOFILE), os.pipe
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (2048, max(2048, limits[1])))
    except ValueError:
        pytest.skip("this user may not open 2048 files")

    def high_pipe() -> tuple[int, int]:
        low = pipe()
        high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 1024) for end in low]
        for end in low:
            os.close(end)
        return high[0], high[1]

    monkeypatch.setattr(os, "pipe", high_pipe)
    try:
        do_all_three(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_ctrl_c_at_the_fork_ends_the_copy_and_never_unwinds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, fork = os.getpid(), os.fork

    def interrupted() -> int:
        pid = fork()
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        return pid

    monkeypatch.setattr(os, "fork", interrupted)
    try:
        with pytest.raises(KeyboardInterrupt), in_background(lambda: time.sleep(60)):
            pass
    finally:
        if os.getpid() != here:  # else the tests would go on in it
            (tmp_path / "unwound").touch()
            os._exit(1)
    assert not (tmp_path / "unwound").exists()


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
