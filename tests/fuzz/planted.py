"""Checks with a bug each, which test_fuzz.py wants to see found."""

from __future__ import annotations

import ctypes

from gfcompile.errors import UserError
from tests.fuzz.check import Check
from tests.fuzz.mutate import change_bytes


def _other_exception(data: bytes) -> None:
    if data.startswith(b"{"):
        raise KeyError("format")


def _hang(data: bytes) -> None:
    while data.startswith(b"{"):
        pass


def _memory(data: bytes) -> None:
    if data.startswith(b"{"):
        bytearray(2 << 30)


def _crash(data: bytes) -> None:
    if data.startswith(b"{"):
        ctypes.string_at(8)


def _lines(data: bytes) -> None:
    if data.startswith(b"{"):
        error = UserError("")
        error.args = ("two\nlines",)
        raise error


def _refusal(data: bytes) -> None:
    raise UserError(f"{len(data)} bytes: not taken; give others")


EXCEPTION, HANG, MEMORY, CRASH, LINES, REFUSAL = (
    Check(run, change_bytes) for run in (_other_exception, _hang, _memory, _crash, _lines, _refusal)
)
