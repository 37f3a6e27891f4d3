"""A setting's value from an option's text; a ValueError says what the text must be."""

from __future__ import annotations

import math
from typing import Any

from gfcompile.settings.text import split_settings

Pair = tuple[str, Any]  # a name pattern, "*" for all, and a value


def whole(text: str) -> int:
    """A whole number."""
    try:
        return int(text)
    except ValueError as error:
        raise ValueError("must be a whole number") from error


def amount(text: str) -> float:
    """A finite number, 0 or more."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise ValueError("must be a finite number, 0 or more")
    return value


def patch(text: str) -> Pair:
    """`2`, `NAME=2`, or `NAME=exact`: None, for a layer that is not filtered."""
    name, _, edge = text.rpartition("=")
    try:
        return name or "*", None if edge == "exact" else int(edge)
    except ValueError as error:
        raise ValueError("must be a patch edge, as in 2 or NAME=2") from error


def share(text: str) -> Pair:
    """`0.1`, `NAME=0.1`, or `auto`."""
    name, _, part = text.rpartition("=")
    try:
        return name or "*", text if text == "auto" else float(part)
    except ValueError as error:
        raise ValueError("must be a share, as in 0.1 or NAME=0.1, or auto") from error


def mode(text: str) -> Pair:
    """`train` or `NAME=train`."""
    name, _, value = text.rpartition("=")
    return name or "*", value


def pair_of_numbers(text: str) -> tuple[float, ...]:
    """`0.9,0.999`."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise ValueError("must be two numbers, as in 0.9,0.999") from error


def edges(text: str) -> tuple[int, ...]:
    """`1,2,4`."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ValueError("must be patch edges joined by commas, as in 1,2,4,7") from error


def shares(text: str) -> tuple[float, ...]:
    """`0.5,0.25`, or `none`."""
    try:
        return () if text == "none" else tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise ValueError("must be shares joined by commas, as in 0.5,0.25, or none") from error


def group(text: str) -> Pair:
    """`PATTERN:key=value,...`."""
    pattern, settings = split_settings("--group", text)
    if not (pattern and settings):
        raise ValueError("has no settings; write 'PATTERN:key=value', as in '*.bias:weight_decay=0'")
    return pattern, settings
