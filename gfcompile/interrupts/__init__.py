"""Ctrl-C, noted: an interrupt that is lost on its way still stops what was to be stopped.

TVM makes a RuntimeError without words of a KeyboardInterrupt that comes inside a Python function which its C++ calls.
Python drops one that comes while an object is being freed, and TVM frees many.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import FrameType


@dataclass
class Note:
    """Whether an interrupt has come; one that is held is raised later."""

    is_set: bool = False
    is_held: bool = False


_note: ContextVar[Note | None] = ContextVar("note of interrupts", default=None)


@contextmanager
def noting(tell: Callable[[], object] | None = None) -> Iterator[Note]:
    """Note interrupts, which come as before, and `tell` of them at once; an error after one leaves as the interrupt.

    Within another, the note is the same. Only the main thread is interrupted: elsewhere nothing is noted, nor where
    interrupts are ignored.
    """
    before = signal.getsignal(signal.SIGINT)
    note = _note.get() or Note()
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield note
        return

    def handle(number: int, frame: FrameType | None) -> None:
        try:
            before(number, frame)
        except KeyboardInterrupt:  # a user's own handler may do something else
            note.is_set = True
            if tell is not None:
                tell()
            if not note.is_held:
                raise

    token = _note.set(note)
    signal.signal(signal.SIGINT, handle)
    try:
        yield note
    except Exception as error:
        if note.is_set and not isinstance(error, BrokenPipeError):  # whose reader was interrupted too
            raise KeyboardInterrupt from error
        raise
    finally:
        signal.signal(signal.SIGINT, before)
        _note.reset(token)


@contextmanager
def held() -> Iterator[None]:
    """Let this end first, which takes a moment. Where none are noted, none are held."""
    note = _note.get() or Note()
    before, note.is_held = note.is_set, True
    try:
        yield
    finally:
        note.is_held = False
    if note.is_set and not before:
        raise KeyboardInterrupt


def raise_noted() -> None:
    """Raise an interrupt that has come and was lost."""
    note = _note.get()
    if note is not None and note.is_set:
        raise KeyboardInterrupt
