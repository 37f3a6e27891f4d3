"""Work done by copies of this process on the other cores: they share what is in memory, and hand over files.

A copy has none of this process's threads, so its work must not wait for any. What a copy did not finish, because it
failed or was killed or is stuck, is done here, and so is everything where the system allows no copy: it can be late or
useless, never wrong. Where this process is killed, its copies end after what they are at.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import select
import signal
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from gfcompile.errors import UserError

T = TypeVar("T")

JOBS = "GFCOMPILE_JOBS"
_NUMBER = struct.Struct("<I")
_AT_ONCE = select.PIPE_BUF // _NUMBER.size  # numbers that surely fit into a pipe: some have one page
_CHECKSUM = hashlib.sha256().digest_size
PATIENCE = 10.0  # seconds that a copy may do nothing at all while it is waited for
_POLL = 0.005
LESS_URGENT = 10  # niceness of work that this process does not wait for yet


def count_jobs() -> int:
    """How many processes a compile may use: $GFCOMPILE_JOBS, or one for each core that this process may run on."""
    given = os.environ.get(JOBS)
    if not given:
        return len(os.sched_getaffinity(0))
    if not given.isdecimal() or int(given) < 1:
        raise UserError(f"{JOBS}={given}: is no number of processes; give 1 or more, or leave it out")
    return int(given)


@contextmanager
def in_background(work: Callable[[], object]) -> Iterator[None]:
    """Let a copy do the work meanwhile, if there is a core for it; at the end it is stopped, done or not."""
    if count_jobs() < 2:
        yield
        return
    copy = _Copy(work, LESS_URGENT)
    try:
        copy.start()
        yield
    finally:
        copy.end()


@contextmanager
def promised(work: Callable[[], T]) -> Iterator[Callable[[], T]]:
    """Let a copy do the work meanwhile. What is given gives its result, which is pickled, or does the work itself."""
    if count_jobs() < 2:
        yield work
        return
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as results, os.fdopen(writing, "wb") as answers:

        def answer() -> None:
            results.close()  # else it would be its own reader, and wait for ever where this process was killed
            with answers:
                answers.write(_checked(pickle.dumps(work())))

        def result() -> T:
            while not to_come.poll(_POLL * 1000):
                if copy.is_stuck():
                    copy.end()
            found = results.read()  # nothing where the copy has failed, a part where it was killed
            content = found[_CHECKSUM:]
            return pickle.loads(content) if _checked(content) == found else work()

        copy = _Copy(answer, LESS_URGENT)
        to_come = select.poll()
        to_come.register(results, select.POLLIN)
        try:
            copy.start()
            answers.close()
            yield result
        finally:
            copy.end()


def share_out(count: int, work: Callable[[int], None], is_done: Callable[[int], bool]) -> None:
    """Do `work(0)` to `work(count - 1)`, here and in copies, each of which takes the next that nobody has taken.

    `is_done` tells of a piece whether what it makes is there, whoever made it. Only what fails here raises.
    """
    for first in range(0, count, _AT_ONCE):
        _share_out(range(first, min(first + _AT_ONCE, count)), work, is_done)


def _share_out(numbers: range, work: Callable[[int], None], is_done: Callable[[int], bool]) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"".join(_NUMBER.pack(number) for number in numbers))
    os.close(writing)
    parent = os.getpid()

    def is_wanted() -> bool:
        return parent in (os.getpid(), os.getppid())

    copies: list[_Copy] = []
    try:
        for _ in range(min(count_jobs(), len(numbers)) - 1):
            copies.append(_Copy(lambda: _take_and_do(reading, work, is_wanted)))
            copies[-1].start()
        _take_and_do(reading, work, is_wanted)
        while not all(map(is_done, numbers)) and not all(copy.has_ended() or copy.is_stuck() for copy in copies):
            time.sleep(_POLL)
        for number in numbers:
            if not is_done(number):
                work(number)
    finally:
        os.close(reading)
        for copy in copies:
            copy.end()


def _checked(content: bytes) -> bytes:
    return hashlib.sha256(content).digest() + content


def _take_and_do(reading: int, work: Callable[[int], None], is_wanted: Callable[[], bool]) -> None:
    while is_wanted() and (taken := os.read(reading, _NUMBER.size)):
        work(_NUMBER.unpack(taken)[0])


class _Copy:
    """A forked copy of this process that does its work and ends. One that never started has ended."""

    def __init__(self, work: Callable[[], object], niceness: int = 0) -> None:
        self._work, self._niceness = work, niceness
        self._used, self._since = "", time.monotonic()
        self._pid = 0

    def start(self) -> None:
        """Fork, unless the system has no room for another process.

        Ctrl-C waits meanwhile: it must find this process knowing its copy, and never unwind the copy. There it waits
        for ever: the copy is ended from here.
        """
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            with contextlib.suppress(OSError):
                self._pid = os.fork()
                if self._pid == 0:
                    self._work_and_end()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _work_and_end(self) -> None:
        try:
            os.nice(self._niceness)
            nowhere = os.open(os.devnull, os.O_WRONLY)
            for stream in (1, 2):  # whoever fails here fails there too, and says so
                os.dup2(nowhere, stream)
            if "torch" in sys.modules:
                sys.modules["torch"].set_num_threads(1)  # those of its pool are not here
            self._work()
        finally:
            os._exit(0)

    def has_ended(self) -> bool:
        """Whether it was waited for, or could be."""
        try:
            return not self._pid or os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # somebody else waited for it: the system, or who uses this process
            return True

    def is_stuck(self) -> bool:
        """Whether it did not run for PATIENCE: it waits for a lock that a thread of the parent held at the fork."""
        try:
            state = Path(f"/proc/{self._pid}/stat").read_text()
        except OSError:  # it is gone
            return False
        if self.has_ended():
            return False
        used = " ".join(state.rpartition(")")[2].split()[11:13])  # its processor time, in the system and outside
        if used != self._used:
            self._used, self._since = used, time.monotonic()
        return time.monotonic() - self._since > PATIENCE

    def end(self) -> None:
        """Stop it if it still works."""
        if not self._pid:
            return
        with contextlib.suppress(ChildProcessError, ProcessLookupError):
            if not self.has_ended():
                os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        self._pid = 0
