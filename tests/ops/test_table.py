"""The operators' table against the registries: what a row names is what the registry holds, and nothing is missing."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from torch._library.custom_ops import OPDEFS

from gfcompile.codegen import kernels
from gfcompile.codegen.converters import CONVERTERS
from gfcompile.codegen.kernels import update
from gfcompile.export.gf import TABLE as ONNX
from gfcompile.graph.multiply_adds import COUNTS
from gfcompile.graph.sample_independence import RULES as SAMPLES
from gfcompile.ops import gf
from gfcompile.ops.table import TABLE, Absent, Row
from gfcompile.passes.gradient_rules import RULES as GRADIENTS
from gfcompile.passes.image_ops import IMAGE_OPS

OPERATORS = {name.removeprefix("gf::"): made for name, made in OPDEFS.items() if name.startswith("gf::")}
BY_OPERATOR = {
    "layout": IMAGE_OPS,
    "gradient_rule": GRADIENTS,
    "onnx": ONNX,
    "multiply_adds": COUNTS,
    "samples": SAMPLES,
}


def name_of(function: Callable[..., Any]) -> str:
    """`module:function` below the package; what a factory made has the factory's name."""
    return f"{function.__module__.removeprefix('gfcompile.')}:{function.__qualname__.partition('.')[0]}"


def differences(column: str, registry: Mapping[Any, Any]) -> list[str]:
    found = []
    for row in TABLE:
        entry, held = getattr(row, column), registry.get(getattr(gf, row.operator).default)
        if isinstance(entry, Absent) != (held is None) or (held is not None and entry != name_of(held)):
            found.append(f"{row.operator}: the row says {entry}, the registry {name_of(held) if held else 'none'}")
    return found


def kernels_of(convert: Callable[..., Any]) -> set[str]:
    """What a converter calls: names of kernels in its code, or the kernel that its factory was given."""
    given = [cell.cell_contents for cell in convert.__closure__ or ()]
    read = [getattr(kernels, name) for name in convert.__code__.co_names if name in kernels.__all__]
    return {name_of(each) for each in given + read if inspect.isfunction(each)}


def gf_converter(row: Row) -> Callable[..., Any] | None:
    return CONVERTERS.get(f"{row.operator}.default")


def test_every_operator_has_one_row():
    assert sorted(row.operator for row in TABLE) == sorted(OPERATORS)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.operator)
def test_eager_and_fake_are_at_home(row):
    module, _, name = row.eager.partition(":")
    operator = OPERATORS[row.operator]
    assert getattr(importlib.import_module(f"gfcompile.{module}"), name) is operator
    assert operator._init_fn.__module__ == f"gfcompile.{row.home}"
    assert operator._abstract_fn is not None, f"'{row.operator}' has no fake"
    assert operator._abstract_fn.__module__ == f"gfcompile.{row.home}"


@pytest.mark.parametrize("column", BY_OPERATOR)
def test_a_column_is_its_registry(column):
    assert differences(column, BY_OPERATOR[column]) == []


def test_lowering_is_the_converters():
    assert differences("lowering", {getattr(gf, row.operator).default: gf_converter(row) for row in TABLE}) == []


def test_kernels_are_those_that_the_lowering_calls():
    for row in TABLE:
        convert = gf_converter(row)
        named = set() if isinstance(row.kernels, Absent) else set(row.kernels)
        assert named == (kernels_of(convert) if convert else set()), row.operator


def test_every_kernel_belongs_to_an_operator():
    """The rows' kernels and those of ATen operators are all that the room offers."""
    ours = {name for row in TABLE if not isinstance(row.kernels, Absent) for name in row.kernels}
    operators = {f"{row.operator}.default" for row in TABLE}
    theirs = set().union(*(kernels_of(convert) for name, convert in CONVERTERS.items() if name not in operators))
    offered = {name_of(getattr(kernels, name)) for name in kernels.__all__}
    public = inspect.getmembers(update, inspect.isfunction)
    updates = {name_of(each) for name, each in public if each.__module__ == update.__name__ and name[0] != "_"}
    assert ours | theirs == offered | updates


def test_a_difference_is_told():
    """Each way that a row and a registry can differ."""
    target = gf.patch_broadcast.default
    told = "patch_broadcast: the row says passes.gradient_rules:_broadcast, the registry "
    assert differences("gradient_rule", {target: GRADIENTS[target]}) == []
    assert differences("gradient_rule", {}) == [told + "none"]
    assert differences("gradient_rule", {target: IMAGE_OPS[target]}) == [told + "passes.image_ops:_patch"]
    assert differences("gradient_rule", GRADIENTS | {gf.put.default: IMAGE_OPS[target]}) == [
        "put: the row says none, because it reads a gradient pixel by pixel: no form passes through it, "
        "the registry passes.image_ops:_patch"
    ]
