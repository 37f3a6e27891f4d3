"""`Check`: what a Python harness does with an input, and what counts as a finding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gfcompile.errors import UserError
from gfcompile.runtime.errors import StepError
from tests.fuzz.mutate import Mutate

REFUSALS = (UserError, StepError)


@dataclass(frozen=True)
class Check:
    """`run` reads an input and returns, or raises a refusal; anything else is a finding. `mutate` knows the format."""

    run: Callable[[bytes], object]
    mutate: Mutate


def refused(call: Callable[..., Any], *arguments: Any) -> Any:
    """What it returns; None if it refuses, in one line."""
    try:
        return call(*arguments)
    except REFUSALS as error:
        require_line(str(error))
        return None


def require_line(text: str) -> None:
    """Whatever a file held, its refusal can be printed and stays in its line of the terminal."""
    if len(text.splitlines()) != 1 or any(ord(letter) < 32 or 127 <= ord(letter) < 160 for letter in text):
        raise AssertionError(f"a refusal is not one line without control characters: {text!r}")
    text.encode()
