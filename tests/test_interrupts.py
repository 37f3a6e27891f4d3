"""An interrupt stops what it was to stop, whatever it has become on its way."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch import nn

import gfcompile
from gfcompile.cli import main
from gfcompile.interrupts import held, noting, raise_noted

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def default_handler() -> Iterator[None]:
    """Python's own, which is not there in a job that a script runs in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler, "it was not put back"


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def lose_an_interrupt() -> None:
    try:
        interrupt()
    except KeyboardInterrupt:
        return
    pytest.fail("no interrupt came")


def become_an_error() -> None:
    """What TVM makes of it."""
    try:
        interrupt()
    except KeyboardInterrupt:
        raise RuntimeError from None


def test_an_error_after_it_is_the_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt), noting():
        become_an_error()
    with pytest.raises(RuntimeError), noting():
        raise RuntimeError


def test_a_lost_one_is_noted() -> None:
    told = []
    with noting() as outer, noting(lambda: told.append(1)) as inner:
        raise_noted()
        lose_an_interrupt()
        assert inner is outer
        assert outer.is_set
        assert told == [1]
        with pytest.raises(KeyboardInterrupt):
            raise_noted()
    raise_noted()  # it is forgotten outside


def test_a_held_one_comes_at_the_end() -> None:
    done = []

    def end(number: int) -> None:
        with held():
            interrupt()
            done.append(number)

    with noting():
        with pytest.raises(KeyboardInterrupt):
            end(1)
        end(2)  # of what was found until the first
    assert done == [1, 2]


def test_a_users_own_handler_decides() -> None:
    seen = []
    signal.signal(signal.SIGINT, lambda *_: seen.append(1))
    with noting() as note:
        interrupt()
        assert seen == [1]
        assert not note.is_set
    interrupt()
    assert seen == [1, 1]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with noting() as note:
        interrupt()
        assert not note.is_set
    assert signal.signal(signal.SIGINT, signal.default_int_handler) is signal.SIG_IGN


def test_other_threads_are_not_interrupted() -> None:
    found = []

    def work() -> None:
        before = signal.getsignal(signal.SIGINT)
        with noting() as note:
            found.append((signal.getsignal(signal.SIGINT) is before, note.is_set))
            raise_noted()

    with noting():
        lose_an_interrupt()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert found == [(True, False)]


def test_a_command_is_interrupted(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    for way in (lose_an_interrupt, become_an_error):
        monkeypatch.setattr("gfcompile.cli.commands.compile", lambda _, way=way: way() or 0)
        assert main(["model.pt"]) == 130
    assert capsys.readouterr().err == "gfcompile: interrupted; no artifact was left half-written\n"


def test_a_call_in_python_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gfcompile.api._build", lambda *_: become_an_error())
    with pytest.raises(KeyboardInterrupt):
        gfcompile.build(nn.Linear(2, 2), [], out=tmp_path / "step")
