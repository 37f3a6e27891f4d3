"""The options that commands share: those of the schema, made of its fields, and those of the command line alone."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from gfcompile.errors import UserError
from gfcompile.settings.fields import Form, Group, Setting, settings_of
from gfcompile.settings.readers import amount, whole
from gfcompile.settings.text import by_pattern
from gfcompile.settings.words import option_name

G = TypeVar("G", bound=Group)


def add_group(parser: argparse.ArgumentParser, title: str, *groups: type[Group]) -> argparse._ArgumentGroup:
    """An option for every setting of the groups; one that is not given leaves no trace in what is parsed."""
    added = parser.add_argument_group(title)
    for group in groups:
        for name, each in settings_of(group).items():
            add_setting(added, name, each)
    return added


def add_setting(group: argparse._ArgumentGroup, name: str, each: Setting) -> None:
    """One option, as its form is written."""
    flag, about = option_name(name), each.helping().replace("%", "%%")
    if each.form is Form.FLAG:
        turns_off = flag.startswith("--no-")
        group.add_argument(
            flag, dest=name, action="store_false" if turns_off else "store_true", default=argparse.SUPPRESS, help=about
        )
        return
    repeats = each.form in (Form.SEVERAL, Form.BY_PATTERN)
    group.add_argument(
        flag,
        dest=name,
        metavar=each.metavar,
        type=reading(flag, each.read),
        action="append" if repeats else "store",
        default=argparse.SUPPRESS,
        help=about,
    )


def reading(flag: str, read: Callable[[str], Any]) -> Callable[[str], Any]:
    """A type for argparse: what a text must be is said as all user errors are."""

    def value_of(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise UserError(f"{flag} '{text}': {error}") from error

    return value_of


def given_settings(args: argparse.Namespace, group: type[G], **others: Any) -> G:
    """The settings of a group as they were given; what the command takes in other ways is in `others`."""
    values = dict(others)
    for name, each in settings_of(group).items():
        if name in args and name not in others:
            value = getattr(args, name)
            values[name] = by_pattern(value) if each.form is Form.BY_PATTERN else value
    return group(**values)


def add_model(
    parser: argparse.ArgumentParser,
    about: str = "a .pt2, .onnx, .pt or .pth file, or package.module:factory",
    count: str | None = None,
    shaped: bool = True,
) -> None:
    """Unless `shaped`, the samples say their shape."""
    group = parser.add_argument_group("model")
    group.add_argument("model", metavar="MODEL", nargs=count, help=about)
    if shaped:
        group.add_argument(
            "--input",
            metavar="NxCxHxW",
            help="shape of a batch, several inputs joined by commas; default: the file's, else a printed guess",
        )
        group.add_argument(
            "--batch",
            metavar="N",
            type=reading("--batch", whole),
            help="batch size, in place of the shape's first number",
        )
    group.add_argument("--weights", metavar="FILE", help="a .safetensors file to load into the model")
    group.add_argument(
        "--trust", action="store_true", help="let a model file run its own code; only for files that you trust"
    )
    group.add_argument(
        "--import",
        metavar="NAME",
        dest="imports",
        action="append",
        default=[],
        help="a Python file or a package of yours that defines the model's classes; may be repeated",
    )


def add_screen(group: argparse._ArgumentGroup) -> None:
    """How much is printed, and as what."""
    add_json(group)
    group.add_argument("--quiet", action="store_true", help="say nothing but results that were asked for, and errors")


def add_json(group: argparse._ActionsContainer) -> None:
    """For programs that read the result."""
    group.add_argument("--json", action="store_true", help="print the result as JSON on stdout")


def add_trials(group: argparse._ArgumentGroup) -> None:
    """When tuning ends."""
    group.add_argument("--trials", metavar="N", type=reading("--trials", whole), help="end after so many trials")
    group.add_argument(
        "--minutes",
        metavar="M",
        type=reading("--minutes", amount),
        help="end after so many minutes; default, without --trials: 10",
    )


def add_data(group: argparse._ArgumentGroup, about: str) -> None:
    """A batch of the user's."""
    group.add_argument("--data", metavar="FILE", type=Path, help=about)
