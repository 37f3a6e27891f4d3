"""Habits of the house that no linter knows: few files at the root, small ones, short functions, documented methods."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import gfcompile

PACKAGE = Path(gfcompile.__file__).parent
MOST_ROOT_FILES = 10
MOST_LINES = 400
MOST_FUNCTION_LINES = 60
ANYS = 1016  # may only fall


def sources() -> Iterator[tuple[str, str]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield str(path.relative_to(PACKAGE.parent)), path.read_text()


def modules() -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages([str(PACKAGE)], "gfcompile."):
        if not found.name.endswith("__main__"):
            yield importlib.import_module(found.name)


def test_the_root_is_small():
    names = sorted(path.name for path in PACKAGE.glob("*.py"))
    assert len(names) <= MOST_ROOT_FILES, f"{', '.join(names)}: what several rooms share gets a room of its own"


def test_files_are_small():
    long = [f"{name}: {text.count(chr(10))} lines" for name, text in sources() if text.count("\n") > MOST_LINES]
    assert not long, f"over {MOST_LINES} lines; split by topic"


@pytest.mark.slow
def test_functions_are_short():
    long = {
        f"{name}:{node.name}"
        for name, text in sources()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno + 1 > MOST_FUNCTION_LINES
    }
    assert not long, f"functions over {MOST_FUNCTION_LINES} lines; cut them"


def test_public_methods_are_documented():
    """Ruff asks it of modules, classes and functions; it cannot see that a method overrides another."""
    missing = [
        f"{module.__name__}.{cls.__name__}.{name}"
        for module in modules()
        for cls in vars(module).values()
        if inspect.isclass(cls) and cls.__module__ == module.__name__ and not cls.__name__.startswith("_")
        for name, value in vars(cls).items()
        if not name.startswith("_") and is_method(cls, name, value)
        if not inspect.getdoc(value) and not any(name in vars(base) for base in cls.__mro__[1:])
    ]
    assert missing == []


def is_method(cls: type, name: str, value: object) -> bool:
    """Defined here, and no function that is the default of a field."""
    if inspect.isfunction(value):
        return value.__qualname__ == f"{cls.__qualname__}.{name}"
    return isinstance(value, classmethod | staticmethod | property)


@pytest.mark.slow
def test_any_only_falls():
    count = sum(
        isinstance(node, ast.Name) and node.id == "Any" for _, text in sources() for node in ast.walk(ast.parse(text))
    )
    assert count <= ANYS, f"{count} uses of Any, {ANYS} are allowed: give the new ones a type"
    assert count == ANYS, f"only {count} uses of Any are left; lower ANYS to that, so that they stay few"
