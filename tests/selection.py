"""Of many cases that take the same path through the code, `make test` runs some and `make coverage` the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def often(cases: Iterable[Any], kept: Iterable[Any]) -> list[ParameterSet]:
    """All cases for `parametrize` (or for the `params` of a fixture); those that are not kept wait for `make coverage`.

    A case that is a tuple is several parameters.
    """
    return _mark_others(list(cases), list(kept), pytest.mark.coverage)


def fast(cases: Iterable[Any], kept: Iterable[Any]) -> list[ParameterSet]:
    """All cases; `make test-fast` runs the kept ones only."""
    return _mark_others(list(cases), list(kept), pytest.mark.slow)


def _mark_others(cases: list[Any], kept: list[Any], mark: pytest.MarkDecorator) -> list[ParameterSet]:
    assert all(case in cases for case in kept), "a case that is not there cannot be kept"
    return [_parameters(case, () if case in kept else mark) for case in cases]


def _parameters(case: Any, marks: Any) -> ParameterSet:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=marks)
