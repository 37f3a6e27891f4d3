"""Rules about samples against the operators themselves: other neighbours, another place in the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from gfcompile.geometry.layouts import WeightLayout
from gfcompile.graph.frozen import frozen_nodes
from gfcompile.graph.sample_independence import Samples
from gfcompile.ops import gf
from gfcompile.plan import Plan
from gfcompile.step import Role, Step, Value

aten = torch.ops.aten
N = 3
Function = Callable[[Tensor, Tensor], Tensor]


def analysed(function: Function, x: Tensor, c: Tensor) -> list[str]:
    """The reasons against the nodes of function(x, c); x is the batch, c a constant."""
    body = make_fx(lambda x, c: (function(x, c),), tracing_mode="fake")(x, c)
    for node in body.graph.nodes:
        if node.target is aten.view.default:  # as the tracer's are
            node.target = aten.reshape.default
    inputs = [Value(Role.INPUT, "x"), Value(Role.CONSTANT, "c")]
    plan = Plan((), frozenset(), False, {"*": "eval"}, False)
    step = Step(body, inputs, [Value(Role.OUTPUT, "output")], plan, {"c": c})
    samples, frozen = Samples(step, N), frozen_nodes(step)
    samples.apart.add(step.placeholders()[0])
    nodes = [node for node in body.graph.nodes if node.op == "call_function" and node not in frozen]
    return [reason for reason in map(samples.why_not_apart, nodes) if reason is not None]


def blocks(function: Function, x: Tensor, c: Tensor) -> list[Tensor]:
    return list(function(x, c).reshape(N, -1))


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def packed(*shape: int) -> Tensor:
    return numbers(*WeightLayout.for_conv(list(shape), 1).physical_shape)


IMAGES, ROWS = (N, 4, 4, 8), (N, 6)
APART: dict[str, tuple[Function, tuple[int, ...], Tensor]] = {
    "element-wise": (lambda x, c: torch.where(x > 0, x, c).exp() * 2, IMAGES, numbers(1, 1, 1, 8)),
    "constant without a batch axis": (lambda x, c: x + c, IMAGES, numbers(4, 4, 8)),
    "constant repeated for the samples": (lambda x, c: x + c, ROWS, numbers(1, 6).repeat(N, 1)),
    "broadcast along other axes": (lambda x, c: x * x.mean([1, 2], keepdim=True), IMAGES, numbers(1)),
    "convolution": (
        lambda x, c: gf.conv2d_nhwc(x, c, [8, 8, 3, 3], [1, 1], [1, 1], [1, 1], 1), IMAGES, packed(8, 8, 3, 3)
    ),
    "pool": (lambda x, c: gf.max_pool2d_nhwc(x, [2, 2], [2, 2], [0, 0], [1, 1], False)[0], IMAGES, numbers(1)),
    "patch_sum": (lambda x, c: gf.patch_sum(x, [2, 2, 0, 0, 4], [2, 2, 0, 0, 4], True), IMAGES, numbers(1)),
    "permute": (lambda x, c: aten.permute(x, [0, 3, 1, 2]), IMAGES, numbers(1)),
    "pixels as rows of a product": (
        lambda x, c: aten.mm(aten.reshape(x, [N * 16, 8]), c), IMAGES, numbers(8, 5)
    ),
    "addmm": (lambda x, c: aten.addmm(c[0], x, c), ROWS, numbers(6, 6)),
    "attention": (
        lambda x, c: aten.bmm(
            aten._softmax(aten.bmm(aten.reshape(x, [N, 16, 8]), aten.permute(aten.reshape(x, [N, 16, 8]), [0, 2, 1])),
                          -1, False),
            aten.reshape(x, [N, 16, 8]),
        ),
        IMAGES, numbers(1),
    ),
    "cat": (lambda x, c: aten.cat([x, x * 2], 1), ROWS, numbers(1)),
    "slice and select": (lambda x, c: aten.select(aten.slice(x, 1, 1, 3), 1, 0), IMAGES, numbers(1)),
    "flip": (lambda x, c: aten.flip(x, [1]), ROWS, numbers(1)),
    "pad": (lambda x, c: aten.constant_pad_nd(x, [0, 0, 1, 1]), IMAGES, numbers(1)),
    "expand": (lambda x, c: aten.expand(aten.reshape(x, [N, 1, 6]), [N, 2, 6]), ROWS, numbers(1)),
    "axis_map": (lambda x, c: gf.axis_map(x, 1, 8, "linear", [0.0, 0.0], False), IMAGES, numbers(1)),
    "move": (lambda x, c: gf.move([x], torch.arange(6, 0, -1, dtype=torch.int32)[:, None], [N, 6]), ROWS, numbers(1)),
}  # fmt: skip
MIXED: dict[str, tuple[Function, tuple[int, ...], Tensor, str]] = {
    "batch statistics": (lambda x, c: x - x.mean([0, 1, 2]), IMAGES, numbers(1), "'mean' mixes"),
    "sum over everything": (lambda x, c: x * aten.sum.dim_IntList(x, []), ROWS, numbers(1), "'sum' mixes"),
    "softmax over the batch": (lambda x, c: aten._softmax(x, 0, False), ROWS, numbers(1), "'_softmax' mixes"),
    "flip of the batch": (lambda x, c: aten.flip(x, [0]), ROWS, numbers(1), "'flip' mixes"),
    "a constant for each place": (lambda x, c: x * c, ROWS, numbers(N, 6), "'mul' mixes"),
    "such a constant where samples lie in one row": (
        lambda x, c: aten.reshape(x, [1, N * 6]) * c, ROWS, numbers(1, N * 6), "'mul' mixes"
    ),
    "a matrix of samples": (lambda x, c: aten.mm(c, x), ROWS, numbers(N, N), "'mm' mixes"),
    "a product of samples": (lambda x, c: aten.mm(x, aten.permute(x, [1, 0])), ROWS, numbers(1), "'permute' mixes"),
    "channels to the front": (lambda x, c: aten.permute(x, [3, 0, 1, 2]), IMAGES, numbers(1), "'permute' mixes"),
    "a sample beside its neighbour": (
        lambda x, c: x + aten.cat([aten.slice(x, 0, 1, N), aten.slice(x, 0, 0, 1)], 0), ROWS, numbers(1),
        "'slice' mixes",
    ),
    "an order nobody vouches for": (
        lambda x, c: aten.sort(x, 0)[0], ROWS, numbers(1), "'sort' is not known to keep the samples of a batch apart"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", APART)
def test_apart(name: str) -> None:
    function, shape, c = APART[name]
    x, others = numbers(*shape), numbers(*shape) + 1
    assert analysed(function, x, c) == []
    alone = blocks(function, x, c)[0]
    torch.testing.assert_close(blocks(function, torch.cat([x[:1], others[1:]]), c)[0], alone, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(blocks(function, torch.cat([others[1:], x[:1]]), c)[-1], alone, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", MIXED)
def test_mixed(name: str) -> None:
    function, shape, c, reason = MIXED[name]
    assert analysed(function, numbers(*shape), c)[0].startswith(reason)


def test_a_batch_of_one_mixes_nothing() -> None:
    body: Any = make_fx(lambda x: (x - x.mean([0, 1]),), tracing_mode="fake")(numbers(1, 6))
    plan = Plan((), frozenset(), False, {"*": "eval"}, False)
    step = Step(body, [Value(Role.INPUT, "x")], [Value(Role.OUTPUT, "output")], plan, {})
    samples = Samples(step, 1)
    samples.apart.add(step.placeholders()[0])
    calls = [node for node in body.graph.nodes if node.op == "call_function"]
    assert [samples.why_not_apart(node) for node in calls] == [None, None]
