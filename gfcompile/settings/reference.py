"""The schema for readers: Python's parameters and their text, the type of the keyword arguments, the table of the
documentation. `python -m gfcompile.settings.reference` writes `keywords.py` and `docs/settings.md`."""

from __future__ import annotations

import dataclasses
import inspect
import textwrap
from pathlib import Path

from gfcompile.settings.fields import Form, Group, settings_of
from gfcompile.settings.planning import Budget, Measured, Measuring, Planning
from gfcompile.settings.schema import Build, Estimation, Selection, Settings, Training
from gfcompile.settings.words import Caller, option_name, speaking_to

WIDTH = 119
KEYWORDS = Path(__file__).with_name("keywords.py")
TABLE = Path("docs/settings.md")
GROUPS = {
    "What is trained": Selection,
    "How gradients are estimated": Estimation,
    "Training": Training,
    "Target and build": Build,
    "What is measured (`gfcompile quality`)": Measured,
    "The budget (`gfcompile plan`)": Budget,
}


def parameters(group: type[Group]) -> list[inspect.Parameter]:
    """The group's settings as keyword arguments."""
    kind = inspect.Parameter.KEYWORD_ONLY
    return [
        inspect.Parameter(each.name, kind, default=each.default, annotation=each.type)
        for each in dataclasses.fields(group)
    ]


def document(group: type[Group]) -> str:
    """A line or more a setting, in Python's words."""
    lines = ["Settings:"]
    with speaking_to(Caller.PYTHON):
        for name, each in settings_of(group).items():
            turned_off = "False: " if option_name(name).startswith("--no-") else ""
            lines += textwrap.wrap(
                f"{name}: {turned_off}{each.helping()}", WIDTH, initial_indent="  ", subsequent_indent="      "
            )
    return "\n".join(lines)


def keywords_text() -> str:
    """`keywords.py`: what a type checker and an editor know of the keyword arguments."""
    lines = [
        '"""The keyword arguments of Python, made from `schema.py` by `python -m gfcompile.settings.reference`."""',
        "",
        "from __future__ import annotations",
        "",
        "from collections.abc import Callable, Mapping, Sequence",
        "from typing import Any, TypedDict",
        "",
        "from gfcompile.settings.schema import PathLike",
    ]
    for group in (Settings, Measuring, Planning):
        lines += ["", "", f"class {group.__name__}Keywords(TypedDict, total=False):"]
        lines += [f'    """{(group.__doc__ or "").splitlines()[0]}"""', ""]
        lines += [f"    {each.name}: {each.type}" for each in dataclasses.fields(group)]
    return "\n".join(lines) + "\n"


def table_text() -> str:
    """The reference table of the documentation."""
    lines = [
        "# Settings",
        "",
        "Made from `gfcompile/settings/schema.py` by `python -m gfcompile.settings.reference`. An option of the command"
        " line and a keyword",
        "argument of Python are the same setting; where an option takes `[NAME=]VALUE` several times, Python takes a"
        " value or a mapping.",
    ]
    for title, group in GROUPS.items():
        lines += ["", f"## {title}", "", "| command line | Python | default | |", "|---|---|---|---|"]
        for each in dataclasses.fields(group):
            setting = each.metadata["setting"]
            metavar = "" if setting.form is Form.FLAG else f" {setting.metavar}"
            written = f"`{option_name(each.name)}{metavar}`".replace("|", "\\|")
            about = setting.helping().replace("|", "\\|")
            lines.append(f"| {written} | `{each.name}` | `{each.default!r}` | {about} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    KEYWORDS.write_text(keywords_text(), encoding="utf-8")
    TABLE.write_text(table_text(), encoding="utf-8")
