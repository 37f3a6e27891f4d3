"""The schema of settings, and everything that is made of it."""

from __future__ import annotations

import inspect
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

import pytest
import torch

import gfcompile
from gfcompile.cli.options import given_settings
from gfcompile.cli.parsers import compile_parser, plan_parser, quality_parser
from gfcompile.errors import UserError
from gfcompile.settings import keywords, reference
from gfcompile.settings.fields import Form, Group, settings_of
from gfcompile.settings.planning import Choice, Measuring, Planning
from gfcompile.settings.schema import Request, Settings
from gfcompile.settings.words import Caller, option, option_name, speaking_to
from tests.models.zoo import INPUTS, ZOO

ROOT = Path(__file__).parents[2]
COMMANDS = {Settings: compile_parser, Measuring: quality_parser, Planning: plan_parser}
FUNCTIONS = {
    Settings: (gfcompile.compile, gfcompile.build),
    Measuring: (gfcompile.quality,),
    Planning: (gfcompile.find_plan,),
}
groups = pytest.mark.parametrize("group", COMMANDS, ids=lambda group: group.__name__)


def test_what_is_made_of_the_schema_is_up_to_date() -> None:
    """`python -m gfcompile.settings.reference` writes both."""
    assert Path(keywords.__file__).read_text(encoding="utf-8") == reference.keywords_text()
    assert (ROOT / reference.TABLE).read_text(encoding="utf-8") == reference.table_text()


@groups
def test_every_setting_is_an_option_and_a_keyword_argument(group: type[Group]) -> None:
    options = COMMANDS[group]()._option_string_actions
    for name in settings_of(group):
        assert options[option_name(name)].dest == name
    for function in FUNCTIONS[group]:
        parameters = inspect.signature(function).parameters
        for each in fields(group):
            assert parameters[each.name].default == each.default
            assert f"\n  {each.name}: " in (function.__doc__ or "")


@groups
def test_every_setting_has_help_and_a_sound_default(group: type[Group]) -> None:
    group()  # checks its own defaults
    for name, each in settings_of(group).items():
        assert each.help, name
        assert (each.metavar is None) == (each.form is Form.FLAG), name
    assert get_type_hints(getattr(keywords, f"{group.__name__}Keywords")).keys() == settings_of(group).keys()


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("", {}),
        ("--layers 3 --r 4 --r a.*=2 --r b=exact", {"layers": 3, "r": {"*": 4, "a.*": 2, "b": None}}),
        ("--r a=2 --r b=3 --r a=4", {"r": {"b": 3, "a": 4}}),
        ("--train a --train b --exact", {"train": ["a", "b"], "exact": True}),
        ("--no-calculus --no-winograd", {"calculus": False, "winograd": False}),
        ("--sparse auto --memory 1MB", {"sparse": {"*": "auto"}, "memory": "1MB"}),
        ("--group *.bias:weight_decay=0", {"groups": {"*.bias": {"weight_decay": 0}}}),
        ("--db t.jsonl --betas 0.9,0.99", {"tuning": Path("t.jsonl"), "betas": (0.9, 0.99)}),
    ],
)
def test_options_give_what_keyword_arguments_do(given: str, found: dict[str, object]) -> None:
    parsed = compile_parser().parse_args(["model.pt", *given.split()])
    assert given_settings(parsed, Settings) == Settings(**found)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value", "pattern", "command_line", "python"),
    [
        ("layers", 9, "*", "--layers 9", "layers=9"),
        ("train_affine", ..., "*", "--train-affine", "train_affine"),
        ("r", 2, "layer4.*", "--r layer4.*=2", "r={'layer4.*': 2}"),
        ("r", None, "conv1", "--r conv1=exact", "r={'conv1': None}"),
        ("batchnorm", "off", "*", "--batchnorm off", "batchnorm='off'"),
        ("groups", ..., "*", "--group", "groups"),
        ("batch", ..., "*", "--batch", "example_inputs"),
    ],
)
def test_words(name: str, value: object, pattern: str, command_line: str, python: str) -> None:
    given = (name,) if value is ... else (name, value, pattern)
    assert option(*given) == command_line  # type: ignore[arg-type]
    with speaking_to(Caller.PYTHON):
        assert option(*given) == python  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {"layers": 9},
            "layers=9: the model has 3 convolutions that count (shortcut projections do not); use layers=3 or less",
        ),
        ({"layers": 0}, "layers=0: must be 1 or more"),
        ({"r": 0}, "r=0: the patch edge must be a whole number, 1 or more; exact=True trains without filtering"),
        ({"r": {"nine": 2}}, "r={'nine': 2}: no layer has that name; `gfcompile inspect MODEL` lists them"),
        ({"sparse": "auto"}, "sparse='auto': needs a budget; give memory, as in memory='256KB'"),
        ({"batchnorm": "off"}, "batchnorm='off': is not known; use eval, train, frozen"),
        (
            {"out": "not-a-name"},
            "out='not-a-name': 'not-a-name' is not a Python module name; use letters",
        ),
        ({"linker": "ld"}, "linker='ld': is not known; use zig or gcc"),
        ({"target": "rpi4", "arch": "sm_86"}, "arch='sm_86': target 'rpi4' has its own; arch is for target='cuda'"),
    ],
)
def test_python_is_answered_in_its_words(settings: dict[str, object], text: str, tmp_path: Path) -> None:
    given = {"out": tmp_path / "a_step", **settings}
    with pytest.raises(UserError) as caught:
        gfcompile.build(ZOO["plain"](), torch.zeros(INPUTS["plain"]), **given)  # type: ignore[arg-type]
    assert str(caught.value).startswith(text)


def test_an_unknown_keyword_argument() -> None:
    with pytest.raises(TypeError) as caught:
        gfcompile.compile(ZOO["plain"](), torch.zeros(INPUTS["plain"]), layer=1)  # type: ignore[call-arg]
    assert str(caught.value) == "compile() got an unexpected keyword argument 'layer'; did you mean 'layers'?"


def test_settings_are_narrowed_to_a_request() -> None:
    request = Settings(layers=2, r={"a": 3}, sparse="auto", loss="mse").narrowed(Request, sparse={"a": 0.5})
    assert request == Request(layers=2, r={"a": 3}, sparse={"a": 0.5})
    assert request.patches == {"*": 2, "a": 3}


def test_a_line_of_a_plan_is_checked_like_any_setting() -> None:
    with pytest.raises(UserError, match="do dance: is not known; use freeze, exact, filter"):
        Choice("dance")
