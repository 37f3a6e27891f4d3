"""What a manifest must look like. Readers of it rely on this, and index it without further questions.

A check takes a value and its place, and returns what is wrong, or None.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from .tensorfile import DTYPES

Check = Callable[[Any, str], "str | None"]
_LONGEST = 40  # letters of a value in a message


def find_fault(manifest: Any) -> str | None:
    """The first thing that is wrong with a manifest, in words that follow its name; None if nothing is."""
    return _MANIFEST(manifest, "")


def show(value: Any) -> str:
    """A value of any kind in a message."""
    if isinstance(value, (list, dict)):  # may be of any depth
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)}"
    return quote(value)


def quote(value: Any) -> str:
    """In quotes, on one line, and short."""
    text = ascii(value)[1:-1] if isinstance(value, str) else ascii(value)
    return f"'{text}'" if len(text) <= _LONGEST else f"'{text[:_LONGEST]}...'"


def _is(what: str, test: Callable[[Any], bool]) -> Check:
    return lambda value, place: None if test(value) else f"{place or 'it'} is {show(value)}, expected {what}"


def _is_text(value: Any) -> bool:
    """Texts become C strings, UTF-8 and lines."""
    return isinstance(value, str) and not any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in value)


def _is_whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _matches(pattern: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and re.fullmatch(pattern, value, re.ASCII) is not None


def _maybe(check: Check) -> Check:
    return lambda value, place: None if value is None else check(value, place)


def _each(check: Check, count: int | None = None) -> Check:
    """A list, of `count` if that is given."""

    def find(value: Any, place: str) -> str | None:
        if not isinstance(value, list) or count not in (None, len(value)):
            return f"{place} is {show(value)}, expected a list" + ("" if count is None else f" of {count}")
        faults = (check(each, f"{place}[{index}]") for index, each in enumerate(value))
        return next((fault for fault in faults if fault is not None), None)

    return find


def _table(keys: Check, values: Check) -> Check:
    """An object with keys that are not known beforehand."""

    def find(value: Any, place: str) -> str | None:
        fault = _OBJECT(value, place)
        if fault is not None:
            return fault
        for key, each in value.items():
            fault = keys(key, f"a key of {place}") or values(each, f"{place}[{show(key)}]")
            if fault is not None:
                return fault
        return None

    return find


def _fields(required: Mapping[str, Check], optional: Mapping[str, Check] | None = None, others: bool = True) -> Check:
    """An object with these entries, and perhaps with `others`, which nobody reads."""
    known = {**required, **(optional or {})}

    def find(value: Any, place: str) -> str | None:
        fault = _OBJECT(value, place)
        if fault is not None:
            return fault
        start = f"{place}." if place else ""
        for name, check in known.items():
            if name in value:
                fault = check(value[name], start + name)
            elif name in required:
                fault = f"has no {start}{name}"
            if fault is not None:
                return fault
        more = [] if others else sorted(value.keys() - known.keys())
        return f"{place} has an unknown {show(more[0])}" if more else None

    return find


_OBJECT = _is("an object", lambda value: isinstance(value, dict))
_TEXT = _is("a text", _is_text)
_FLAG = _is("true or false", lambda value: isinstance(value, bool))
_WHOLE = _is("a whole number", _is_whole)
_COUNT = _is("a whole number of 1 or more", lambda value: _is_whole(value) and value > 0)
_RATE = _is("a number that float32 holds, 0 or more", lambda value: type(value) in (int, float) and 0 <= value < 2**128)
_DIGEST = _is("64 hex digits", _matches("[0-9a-f]{64}"))
_FILE = _is("a plain file name", _matches(r"\w[\w.-]*"))
_DTYPE = _is("the name of a type", lambda value: isinstance(value, str) and value in DTYPES.values())

_RESULT = {"name": _TEXT, "shape": _each(_WHOLE), "dtype": _DTYPE}
_TENSOR = {"role": _TEXT, **_RESULT}
_LAYOUT = _fields({"shape": _each(_WHOLE), "permute": _each(_WHOLE)})
_LAYER = _fields({"layer": _TEXT, "role": _TEXT, "r": _maybe(_COUNT), "channels": _maybe(_COUNT)})
_MANIFEST = _fields(
    {
        "name": _TEXT,
        "build_id": _DIGEST,
        "library": _FILE,
        "files": _table(_FILE, _DIGEST),
        "batch": _COUNT,
        "lr": _RATE,
        "checkpoint": _fields({"compatible": _TEXT, "frozen": _TEXT}, others=False),  # all of it goes into checkpoints
        "loss": _fields({"name": _TEXT, "per_sample": _FLAG, "settings": _OBJECT, "classes": _maybe(_COUNT)}),
        "optimizer": _fields({"name": _TEXT}, {"groups": _table(_TEXT, _OBJECT)}),
        "inputs": _each(_fields(_TENSOR)),
        "outputs": _each(_fields({"key": _maybe(_TEXT), **_RESULT})),
        "state": _each(_fields({"layout": _maybe(_LAYOUT), **_TENSOR})),
        "gradients": _each(_TEXT),
        "state_dict": _each(_TEXT),
        "shared": _table(_TEXT, _TEXT),
        "plan": _fields({"trained": _each(_LAYER), "exact": _FLAG, "compat": _maybe(_TEXT)}),
        "filtered_layers": _each(_TEXT),
        "refusals": _each(_each(_TEXT, 2)),
        "batchnorm": _is("a mode of batch norms", lambda value: value in ("eval", "train")),
        "norms": _table(_TEXT, _TEXT),
        "dropout": _FLAG,
        "target": _TEXT,
        "architecture": _maybe(_TEXT),
    },
    {"features": _fields({"fingerprint": _TEXT, "tensors": _each(_fields(_TENSOR))})},
)
