"""The parts of a report as JSON data, and back.

A dataclass becomes an object with a key for each field, in their order; `pass_` becomes "pass". A field whose default
is None is left out where it is None, any other is written as null. Tuples are lists. Reading is strict: a missing key,
an unknown one and a value of another type are refused with a ValueError.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    Protocol,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    runtime_checkable,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")


@runtime_checkable
class HasOwnForm(Protocol):
    """A part that is not written field by field."""

    def as_data(self) -> dict[str, object]:
        """The object that stands for it."""
        ...

    @classmethod
    def from_data(cls, data: Mapping[str, object]) -> Self:
        """The part that `as_data` made this of; ValueError if it made no such part."""
        ...


def as_data(part: DataclassInstance) -> dict[str, object]:
    """What json.dumps takes."""
    if isinstance(part, HasOwnForm):
        return {key: _written(value) for key, value in part.as_data().items()}
    values = [(field, getattr(part, field.name)) for field in dataclasses.fields(part)]
    return {_key(field): _written(value) for field, value in values if value is not None or field.default is not None}


def from_data(kind: type[T], data: object) -> T:
    """The part that `as_data` made this of; ValueError if it made no such part."""
    found: T = _read(kind, data)
    return found


def _key(field: dataclasses.Field[Any]) -> str:
    return field.name.removesuffix("_")


def _written(value: Any) -> object:
    if dataclasses.is_dataclass(value):
        return as_data(value)  # type: ignore[arg-type]
    if isinstance(value, Mapping):
        return {key: _written(each) for key, each in value.items()}
    return [_written(each) for each in value] if isinstance(value, tuple) else value


def _read(kind: Any, data: object) -> Any:
    """`kind` is an annotation, resolved."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _read_any(arguments, data)
    if dataclasses.is_dataclass(kind) and isinstance(data, dict):
        return _read_part(kind, data)
    if origin is tuple and isinstance(data, list):
        kinds = arguments[:1] * len(data) if arguments[-1] is ... else arguments
        if len(kinds) == len(data):
            return tuple(map(_read, kinds, data))
    if origin is Mapping and isinstance(data, dict):
        return {key: _read(arguments[1], value) for key, value in data.items()}
    if kind is object or type(data) is kind or (kind is float and type(data) is int):
        return data
    if origin is Literal and (type(data), data) in [(type(each), each) for each in arguments]:
        return data
    raise ValueError(f"{data!r} is no {kind}")


def _read_part(kind: Any, data: dict[str, object]) -> Any:
    if issubclass(kind, HasOwnForm):
        return kind.from_data(data)
    fields = {_key(field): field for field in dataclasses.fields(kind)}
    may_miss = {key for key, field in fields.items() if field.default is None}
    if not fields.keys() - may_miss <= data.keys() <= fields.keys():
        raise ValueError(f"{kind.__name__}: its keys are {', '.join(fields)}, not {', '.join(data)}")
    kinds = _annotations(kind)
    return kind(**{fields[key].name: _read(kinds[fields[key].name], value) for key, value in data.items()})


def _read_any(kinds: tuple[Any, ...], data: object) -> Any:
    """The first of a union's members that fits."""
    for kind in kinds:
        try:
            return _read(kind, data)
        except ValueError:
            continue
    raise ValueError(f"{data!r} is none of {', '.join(str(kind) for kind in kinds)}")


@cache
def _annotations(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)
