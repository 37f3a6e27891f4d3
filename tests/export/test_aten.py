"""Every translated ATen operator against eager PyTorch, over its options."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest
import torch

from gfcompile.export.aten import TABLE, THEMES
from tests.export.aten_cases import CASES, DECOMPOSED, UNINITIALISED, X, truth
from tests.export.harness import Case, assert_agrees, checked, run, step_of, untranslated

BY_OPERATOR = {
    name: list(cases)
    for name, cases in groupby(sorted(CASES, key=lambda case: str(case.target)), lambda case: str(case.target))
}
aten = torch.ops.aten


@pytest.mark.parametrize("operator", BY_OPERATOR)
def test_agrees_with_eager(operator: str) -> None:
    for case in BY_OPERATOR[operator]:
        assert_agrees(case)


def test_every_translation_is_tested() -> None:
    assert {str(target) for target in TABLE} == BY_OPERATOR.keys() | set(map(str, UNINITIALISED))


def test_no_operator_stands_in_two_themes() -> None:
    assert sum(len(theme.TABLE) for theme in THEMES) == len(TABLE)


@pytest.mark.parametrize("case", DECOMPOSED, ids=str)
def test_the_rest_is_spelled_in_core_aten(case: Case) -> None:
    assert case.target not in TABLE
    assert_agrees(case)


@pytest.mark.parametrize(
    ("target", "args"),
    [
        (aten.empty.memory_format, ([2, 3],)),
        (aten.empty_like.default, (X,)),
        (aten.empty_permuted.default, ([2, 3], [1, 0])),
        (aten.empty_strided.default, ([2, 3], [3, 1])),
        (aten.new_empty.default, (X, [2])),
        (aten.new_empty_strided.default, (X, [2, 2], [2, 1])),
    ],
)
def test_what_is_uninitialised_has_its_shape(target: Any, args: tuple[Any, ...]) -> None:
    step = step_of(Case(target, args))
    (found,) = run(checked(step), [node.meta["val"] for node in step.placeholders()])
    (wanted,) = (node.meta["val"] for node in step.results())
    assert found.shape == tuple(wanted.shape)
    assert not found.any()


@pytest.mark.parametrize(
    ("case", "text"),
    [
        (Case(aten.index.Tensor, (X, [truth(2)])), "aten.index.Tensor (by a mask, which gives no fixed shape)"),
        (
            Case(aten.index_put.default, (X, [torch.tensor([0]), None, torch.tensor([0])], torch.tensor(1.0))),
            "aten.index_put.default (gaps between its indices)",
        ),
        (
            Case(aten.as_strided.default, (X.permute(2, 1, 0), [2, 2], [1, 2])),
            "aten.as_strided.default (strides over a tensor that is not contiguous)",
        ),
        (Case(aten.linalg_vector_norm.default, (X, 3)), "aten.linalg_vector_norm.default (order 3)"),
        (Case(aten.cholesky.default, (torch.eye(3),)), "aten.cholesky.default"),
    ],
)  # fmt: skip
def test_what_has_no_translation_is_a_node_without_a_body(case: Case, text: str) -> None:
    model = checked(step_of(case))
    assert untranslated(model) == [text]
    assert model.doc_string == f"test\nwithout a body: {text}"
    (node,) = (node for node in model.graph.node if node.domain)
    assert f"aten.{node.op_type}" in text
    assert len(node.input) == sum(arg.op == "placeholder" for arg in step_of(case).body.graph.nodes)
