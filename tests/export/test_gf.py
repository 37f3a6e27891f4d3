"""The body of every gf operator against its eager definition."""

from __future__ import annotations

from itertools import groupby

import pytest
import torch
from hypothesis import given, settings

from gfcompile.export.functions import DOMAIN
from gfcompile.export.gf import TABLE
from gfcompile.ops import gf
from tests.export.gf_cases import CASES
from tests.export.harness import Case, assert_agrees, checked, step_of
from tests.geometries import Geometry, conv_geometries

BY_OPERATOR = {
    name: list(cases)
    for name, cases in groupby(sorted(CASES, key=lambda case: str(case.target)), lambda case: str(case.target))
}
aten = torch.ops.aten


@pytest.mark.slow
@pytest.mark.parametrize("operator", BY_OPERATOR)
def test_agrees_with_eager(operator: str) -> None:
    for case in BY_OPERATOR[operator]:
        assert_agrees(case)


def test_every_operator_has_a_body_and_every_body_a_test() -> None:
    names = {name for name in torch._C._dispatch_get_all_op_names() if name.startswith("gf::")}
    assert {target._schema.name for target in TABLE} == names
    assert {str(target) for target in TABLE} == BY_OPERATOR.keys()


@pytest.mark.slow
@settings(max_examples=30)
@given(conv_geometries())
def test_convolution_gradients_of_any_geometry(geometry: Geometry) -> None:
    generator = torch.Generator().manual_seed(0)
    gy, x, w = (
        torch.randn(shape, generator=generator)
        for shape in (geometry.output_shape, geometry.input_shape, geometry.weight_shape)
    )
    options = [list(pair) for pair in (geometry.stride, geometry.padding, geometry.dilation)]
    exact = (gy, x, w, [w.shape[0]], *options, False, [0, 0], geometry.groups, [True] * 3)
    assert_agrees(Case(aten.convolution_backward.default, exact))
    filtered = (gy, x, w, *options, geometry.groups, geometry.r, False)
    assert_agrees(Case(gf.filtered_convolution_backward.default, filtered))


def test_a_node_reads_like_the_call() -> None:
    x, rows, cols = torch.randn(1, 2, 4, 4), [2, 2, 0, 0, 4], [1, 4, 0, 0, 4]
    model = checked(step_of(Case(gf.patch_sum.default, (x, rows, cols), {"channels_last": False})))
    (node,), (function,) = model.graph.node, model.functions
    assert (node.domain, node.op_type, node.overload) == (DOMAIN, "patch_sum", function.overload)
    assert (function.domain, function.name, list(function.input)) == (DOMAIN, "patch_sum", ["x"])
    found = {each.name: list(each.ints) or each.i for each in node.attribute}
    assert found == {"rows": rows, "cols": cols, "channels_last": 0}
    assert list(function.attribute) == list(found)
    assert {each.op_type for each in function.node} == {"Constant", "Slice", "Pad", "Reshape", "ReduceSum"}


def test_equal_calls_share_a_body_and_others_do_not() -> None:
    overloads = []
    for shape, rows in (((1, 2, 4, 4), 2), ((1, 2, 4, 4), 2), ((2, 2, 4, 4), 2), ((1, 2, 4, 4), 4)):
        windows = [4 // rows, rows, 0, 0, 4]
        model = checked(step_of(Case(gf.patch_sum.default, (torch.zeros(shape), windows, windows))))
        overloads.append(model.functions[0].overload)
    assert overloads[0] == overloads[1]
    assert len(set(overloads)) == 3
