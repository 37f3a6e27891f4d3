"""Shapes are inferred once for calls that are alike, and anew for those that are not."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from gfcompile.graph.shapes import infer

aten = torch.ops.aten


@pytest.fixture
def graph() -> fx.Graph:
    """Inputs `one` and `two` of the same kind, `turned` with other strides, `counts` of another type."""
    made = fx.Graph()
    with FakeTensorMode():
        values = {
            "one": torch.empty(2, 3, 4, 4),
            "two": torch.empty(2, 3, 4, 4),
            "turned": torch.empty(2, 4, 4, 3).permute(0, 3, 1, 2),
            "counts": torch.empty(2, 3, 4, 4, dtype=torch.int64),
        }
    for name, value in values.items():
        made.placeholder(name).meta["val"] = value
    return made


def test_alike_is_inferred_once(graph: fx.Graph) -> None:
    one, two, turned, counts = graph.nodes
    calls = []

    def relu(x: Any) -> Any:
        calls.append(x)
        return aten.relu.default(x)

    found = [infer(graph, relu, (each,), {}) for each in (one, two, turned, counts, one)]
    assert len(calls) == 3
    assert found[0] is found[1] is found[4]
    assert found[0].stride() == (48, 16, 4, 1)
    assert found[2].stride() == turned.meta["val"].stride()
    assert found[3].dtype is torch.int64


def test_numbers_of_other_types_are_other_calls(graph: fx.Graph) -> None:
    *_, counts = graph.nodes
    types = [infer(graph, aten.mul.Scalar, (counts, factor), {}).dtype for factor in (2, 2.0, 2)]
    assert types == [torch.int64, torch.float32, torch.int64]
    dtypes = [torch.float32, torch.bool]
    assert [infer(graph, aten.full.default, ([2], 1), {"dtype": each}).dtype for each in dtypes] == dtypes


def test_what_cannot_be_inferred_is_not_remembered(graph: fx.Graph) -> None:
    one, *_ = graph.nodes
    for _ in range(2):
        with pytest.raises(RuntimeError, match="number of dim"):
            infer(graph, aten.permute.default, (one, [0, 1]), {})


def test_a_trace_is_forgotten_with_its_graph() -> None:
    graph = fx.Graph()
    with FakeTensorMode() as mode:
        graph.placeholder("one").meta["val"] = torch.empty(2, 3)
    (one,) = graph.nodes
    for target in (aten.relu.default, aten.t.default):
        infer(graph, target, (one,), {})
    forgotten = weakref.ref(mode)
    del graph, mode, one
    gc.collect()
    assert forgotten() is None
