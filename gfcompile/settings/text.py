"""Settings written as text, one spelling for all: `NAME:key=value,key=value`, a list's values joined by `/`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from gfcompile.errors import UserError

T = TypeVar("T")
_UNITS = {"": 1, "B": 1, "KB": 1024, "MB": 1024**2, "GB": 1024**3}
_COUNTS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_WORDS = {"true": True, "false": False}
FLOAT32_MOST = (2 - 2.0**-23) * 2.0**127  # what kernels read is float32


def split_settings(where: str, text: str) -> tuple[str, dict[str, Any]]:
    """("cross_entropy", {"label_smoothing": 0.1}) of `cross_entropy:label_smoothing=0.1`. A path stays a string."""
    name, _, rest = text.partition(":")
    settings: dict[str, Any] = {}
    for part in rest.split(",") if rest else []:
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not (key and equals and value):
            raise UserError(
                f"{where}: '{part}' in '{text}' is not of the form key=value; write NAME:key=value,key=value"
            )
        if key in settings:
            raise UserError(f"{where}: '{key}' stands twice in '{text}'; give it once")
        settings[key] = _value(value)
    return name, settings


def by_pattern(settings: Iterable[tuple[str, T]]) -> dict[str, T]:
    """Of settings of which the last that fits counts: a pattern that is given again stands where it was given last."""
    found: dict[str, T] = {}
    for pattern, value in settings:
        found.pop(pattern, None)
        found[pattern] = value
    return found


def read_bytes(given: int | str) -> int:
    """262144 of `256KB` or 262144: B, KB, MB and GB of 1024 each. A ValueError says what it must be."""
    found = _scaled(given, _UNITS)
    if found is None:
        raise ValueError("must be a number of bytes, as in 262144, 256KB or 2MB")
    return found


def read_count(given: float | str) -> int:
    """2000000 of `2M` or 2000000: K, M, G and T of 1000 each. A ValueError says what it must be."""
    found = _scaled(given, _COUNTS)
    if found is None:
        raise ValueError("must be a number of operations, as in 250M or 1.5G")
    return found


def _scaled(given: float | str, units: Mapping[str, int]) -> int | None:
    """A number with its unit, above 0 and of at most 63 bits."""
    text = str(given).strip().upper()
    number = text.rstrip("KMGTB")
    unit, size = text[len(number) :], _number(number.strip())
    if isinstance(given, bool) or size is None or unit not in units or not 0 < size * units[unit] < 2**63:
        return None
    return int(size * units[unit])


def _value(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    numbers = [_number(part) for part in text.split("/")]
    if any(number is None for number in numbers):
        return text
    return numbers[0] if len(numbers) == 1 else tuple(numbers)


def _number(text: str) -> int | float | None:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None
