"""What a setting's value may be: each check says what is wrong, or None."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gfcompile.settings.fields import Check
from gfcompile.settings.text import FLOAT32_MOST
from gfcompile.settings.words import flag


def one_of(*known: str) -> Check:
    """One of these words, or not given."""

    def check(value: Any) -> str | None:
        if value is None or value in known:
            return None
        return (
            f"is not known; use {', '.join(known)}" if len(known) > 1 else f"is not known; the only one is {known[0]}"
        )

    return check


def is_number(value: Any) -> bool:
    """Of any kind but True and False."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_whole(value: Any) -> bool:
    """A whole number, 1 or more."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def check_count(value: Any) -> str | None:
    """How many of something, or not given."""
    return None if value is None or is_whole(value) else "must be 1 or more"


def check_patch(value: Any) -> str | None:
    """A patch edge; None leaves a layer unfiltered."""
    if value is None or is_whole(value):
        return None
    return f"the patch edge must be a whole number, 1 or more; {flag('exact')} trains without filtering"


def check_share(value: Any) -> str | None:
    """A share of input channels, or not given."""
    if value is None or (is_number(value) and 0 < value <= 1):
        return None
    return "must be a share of the input channels, more than 0 and at most 1; 1 updates all of them"


def check_plan_edge(value: Any) -> str | None:
    """A patch edge that the file of a plan may hold, or not given."""
    if value is None or (is_whole(value) and value < 2**31):
        return None
    return "the patch edge must be a whole number from 1 to 2147483647, as in r = 2"


def check_plan_share(value: Any) -> str | None:
    """A share that the file of a plan may hold, or not given."""
    if value is None or (is_number(value) and 0 < value <= 1):
        return None
    return "must be a share of the input channels, more than 0 and at most 1"


def or_word(word: str, check: Check) -> Callable[[Any], str | None]:
    """This word, or what the check allows."""
    return lambda value: None if value == word else check(value)


def check_rate(value: Any) -> str | None:
    """A learning rate that kernels can read, or not given."""
    try:
        rate = None if value is None else float(value)
    except (TypeError, ValueError):
        return "is no number; give one, as in 0.01"
    if rate is None or 0 <= rate <= FLOAT32_MOST:
        return None
    return "must be a number of 0 or more that a float32 holds, 3.4e38 at most"


def readable(read: Callable[[Any], Any]) -> Check:
    """What this reads, or not given."""

    def check(value: Any) -> str | None:
        try:
            read(value) if value is not None else None
        except ValueError as error:
            return str(error)
        return None

    return check


def check_edge(value: Any) -> str | None:
    """One of the patch edges to try."""
    return None if is_whole(value) else "must be patch edges of 1 or more, as in 1,2,4,7"


def check_part(value: Any) -> str | None:
    """One of the shares to choose from."""
    if is_number(value) and 0 < value < 1:
        return None
    return "must be shares of the input channels between 0 and 1, as in 0.5,0.25"


def check_cosine(value: Any) -> str | None:
    """The cosine of an angle of at most 90 degrees."""
    return None if is_number(value) and 0 <= value <= 1 else "must be a number from 0 to 1"
