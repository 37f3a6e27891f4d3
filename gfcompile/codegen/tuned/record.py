"""`Record`: one trial, and the line of JSON that keeps it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, NamedTuple, NoReturn

from gfcompile.codegen.schedules.choices import Decisions
from gfcompile.errors import ContractError

MEASURED, EMULATED, RANKED = "measured", "emulated", "ranked"
KINDS = (MEASURED, EMULATED, RANKED)


@dataclass(frozen=True)
class Record:
    """One trial of one kernel. The ratio alone compares candidates: both kernels of it ran in turn."""

    kernel: str  # structural hash of the unscheduled kernel, hex
    name: str  # for people
    template: str  # the rule that scheduled it
    target: str  # `target_key` of the machine
    versions: str
    decisions: Decisions
    kind: str  # measured, emulated, or ranked: by a static model, never with times
    seconds: float | None  # median of a run of the candidate
    reference_seconds: float | None  # of the untuned kernel, in turn with it in the same trial
    ratio: float | None  # median of the turns' reference / candidate: above 1 is faster
    spread: float | None  # of the turns' ratios
    failure: str | None  # why it does not count
    machine: Mapping[str, Any]  # cpu model, cores, governor, khz, temperature as known; JSON values
    date: str  # ISO, UTC
    score: float | None = None  # of a ranked one


class BadRecordError(Exception):
    """A line that is no record; the text says why."""


def as_mapping(record: Record) -> dict[str, Any]:
    """As it is written: a JSON object."""
    return {field.name: getattr(record, field.name) for field in fields(Record)}


def write_record(record: Record) -> bytes:
    """Its line. That the very record can be read back is the caller's duty."""
    values = as_mapping(record)
    try:
        line = json.dumps(values, allow_nan=False).encode()
        comes_back = read_record(line) == record
    except (TypeError, ValueError, BadRecordError) as error:
        raise ContractError(f"a trial of {record.name} cannot be kept: {error}") from error
    if not comes_back:
        raise ContractError(f"a trial of {record.name} cannot be kept: JSON changes {record}")
    return line + b"\n"


def read_record(line: bytes) -> Record:
    """One line of a database; raises BadRecordError with what is wrong with it."""
    try:
        values = json.loads(line.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:  # ValueError: not UTF-8, not JSON, or a number of thousands of digits
        raise BadRecordError("not a whole JSON object") from error
    if not isinstance(values, dict):
        raise BadRecordError("not a whole JSON object")
    missing = [f"lacks '{name}'" for name in _REQUIRED if name not in values]
    extra = [f"has the unknown field '{_cut(name)}'" for name in values if name not in _FIELDS]
    if missing or extra:
        raise BadRecordError(", ".join(missing + extra))
    for name, value in values.items():
        if not _FIELDS[name].is_right(value):
            raise BadRecordError(f"{name} is {_cut(json.dumps(value))}; it should be {_FIELDS[name].instead}")
    if values["kind"] == RANKED and any(values[name] is not None for name in _TIMES):
        raise BadRecordError(f"a ranked one has none of {', '.join(_TIMES)}")
    return Record(**{name: _FIELDS[name].make(value) for name, value in values.items()})


class _Field(NamedTuple):
    is_right: Callable[[Any], bool]
    instead: str
    make: Callable[[Any], Any] = lambda value: value  # what the record holds, of what JSON gave


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def _is_option(value: Any) -> bool:
    return type(value) in (int, str) or (isinstance(value, list) and all(type(each) is int for each in value))


def _or_null(field: _Field) -> _Field:
    return _Field(
        lambda value: value is None or field.is_right(value),
        f"{field.instead} or null",
        lambda value: None if value is None else field.make(value),
    )


_TEXT = _Field(lambda value: isinstance(value, str), "a text")
_NUMBER = _Field(_is_number, "a number", float)
_ABOVE_ZERO = _Field(lambda value: _is_number(value) and value > 0, "a number above 0", float)
_NOT_NEGATIVE = _Field(lambda value: _is_number(value) and value >= 0, "a number of at least 0", float)
_TIMES = ("seconds", "reference_seconds", "ratio", "spread")
_FIELDS = {
    "kernel": _TEXT,
    "name": _TEXT,
    "template": _TEXT,
    "target": _TEXT,
    "versions": _TEXT,
    "decisions": _Field(
        lambda value: isinstance(value, dict) and all(map(_is_option, value.values())),
        "whole numbers, texts or lists of whole numbers by name",
        lambda value: {name: tuple(each) if isinstance(each, list) else each for name, each in value.items()},
    ),
    "kind": _Field(lambda value: value in KINDS, ", ".join(KINDS[:-1]) + f" or {KINDS[-1]}"),
    "seconds": _or_null(_ABOVE_ZERO),
    "reference_seconds": _or_null(_ABOVE_ZERO),
    "ratio": _or_null(_ABOVE_ZERO),
    "spread": _or_null(_NOT_NEGATIVE),
    "failure": _or_null(_TEXT),
    "machine": _Field(lambda value: isinstance(value, dict), "values by name"),
    "date": _TEXT,
    "score": _or_null(_NUMBER),
}
_REQUIRED = [field.name for field in fields(Record) if field.default is MISSING]


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _cut(text: str, most: int = 40) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."
