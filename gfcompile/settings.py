"""Settings written as text, one spelling for all: `NAME:key=value,key=value`, a list's values joined by `/`."""

from __future__ import annotations

from typing import Any

from gfcompile.errors import UserError

_WORDS = {"true": True, "false": False}


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
