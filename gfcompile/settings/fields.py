"""What a field of the schema carries beside its type and its default: help, how its text is read, what it may be."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, TypeVar

from gfcompile.errors import UserError
from gfcompile.settings.words import either, option

G = TypeVar("G", bound="Group")
Check = Callable[[Any], str | None]  # what is wrong with a value, or None


class Form(Enum):
    """How a setting is written."""

    ONE = auto()  # --lr 0.1
    FLAG = auto()  # --exact
    SEVERAL = auto()  # --train a --train b; a tuple, or one
    LISTED = auto()  # --r 1,2,4; a tuple
    BY_PATTERN = auto()  # --r 2 --r layer4.*=4; one value, or a mapping from name patterns


def fine(_: Any) -> None:
    """The check of a setting that is looked at where it is used."""


@dataclass(frozen=True)
class Setting:
    """`help` names other settings as `{name}`, for each caller in its own words; `python` says what Python may give,
    where that is more or written otherwise. `read` makes a value of text."""

    help: str
    metavar: str | None = None
    form: Form = Form.ONE
    read: Callable[[str], Any] = str
    check: Check = fine
    python: str | None = None

    def helping(self) -> str:
        """The help in the caller's words."""
        text = self.help if self.python is None else either(self.help, self.python)
        return re.sub(r"\{(\w+)\}", lambda found: option(found[1]), text)

    def parts(self, value: Any) -> Iterator[tuple[str, Any]]:
        """The values that `check` looks at, each with the pattern that it is for."""
        if self.form is Form.BY_PATTERN and isinstance(value, Mapping):
            yield from value.items()
        elif self.form in (Form.SEVERAL, Form.LISTED) and isinstance(value, (tuple, list)):
            yield from (("*", each) for each in value)
        else:
            yield "*", value


def setting(
    default: Any,
    help: str,
    metavar: str | None = None,
    form: Form = Form.ONE,
    read: Callable[[str], Any] = str,
    check: Check = fine,
    python: str | None = None,
) -> Any:
    """A field of a group. Without a metavar it is a flag."""
    form = Form.FLAG if metavar is None else form
    return field(default=default, metadata={"setting": Setting(help, metavar, form, read, check, python)})


@dataclass(frozen=True, kw_only=True)
class Group:
    """Settings that belong together. Every value is checked as it is made; None is what was not given."""

    def __post_init__(self) -> None:
        for name, each in settings_of(type(self)).items():
            given = getattr(self, name)
            if each.form is Form.LISTED and not isinstance(given, (tuple, list)):
                raise UserError(f"{option(name, given)}: must be a list of values")
            for pattern, value in each.parts(given):
                problem = each.check(value)
                if problem is not None:
                    raise UserError(f"{option(name, value, pattern)}: {problem}")

    def narrowed(self, group: type[G], **changes: Any) -> G:
        """The settings of a group that this one is made of."""
        own = {name: getattr(self, name) for name in settings_of(group)}
        return group(**{**own, **changes})

    def widened(self, group: type[G], **changes: Any) -> G:
        """A group that is made of this one, its other settings as they are by default."""
        own = {name: getattr(self, name) for name in settings_of(type(self))}
        return group(**{**own, **changes})


def settings_of(group: type[Group]) -> dict[str, Setting]:
    """The group's settings by name, in their order."""
    return {each.name: each.metadata["setting"] for each in dataclasses.fields(group) if "setting" in each.metadata}


def make(group: type[G], given: Mapping[str, Any], caller: str) -> G:
    """Settings by name, as Python's keyword arguments; `caller` is the function that took them."""
    known = settings_of(group)
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean '{close[0]}'?" if close else ""
            raise TypeError(f"{caller}() got an unexpected keyword argument '{name}'{hint}")
    return group(**given)
