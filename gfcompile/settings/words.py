"""A setting in the caller's words: `--layers 9` on the command line, `layers=9` in Python."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum, auto
from typing import Any


class Caller(Enum):
    """Who reads a message."""

    COMMAND_LINE = auto()
    PYTHON = auto()


_caller = ContextVar("caller", default=Caller.COMMAND_LINE)
_OPTIONS = {  # options that are not called as their settings are
    "calculus": "--no-calculus",
    "winograd": "--no-winograd",
    "groups": "--group",
    "tuning": "--db",
}
_ARGUMENTS = {"input": "example_inputs", "batch": "example_inputs"}  # what Python gives in other ways
_ABSENT = object()


@contextmanager
def speaking_to(caller: Caller) -> Iterator[None]:
    """Messages that are made meanwhile are in this caller's words."""
    token = _caller.set(caller)
    try:
        yield
    finally:
        _caller.reset(token)


def option_name(name: str) -> str:
    """A setting's name on the command line."""
    return _OPTIONS.get(name, f"--{name.replace('_', '-')}")


def option(name: str, value: Any = _ABSENT, pattern: str = "*") -> str:
    """A setting, alone or with its value; `pattern` names the layers that it is for, "*" being all."""
    if _caller.get() is Caller.PYTHON:
        name = _ARGUMENTS.get(name, name)
        if value is _ABSENT:
            return name
        given = value if pattern == "*" else {pattern: value}
        return f"{name}={given!r}"
    if value is _ABSENT:
        return option_name(name)
    text = "exact" if value is None else value
    return f"{option_name(name)} {text}" if pattern == "*" else f"{option_name(name)} {pattern}={text}"


def flag(name: str) -> str:
    """A setting that is turned on: on the command line, its name alone."""
    return either(option_name(name), f"{name}=True")


def either(command_line: str, python: str) -> str:
    """Words that differ by more than how a setting is written."""
    return python if _caller.get() is Caller.PYTHON else command_line
