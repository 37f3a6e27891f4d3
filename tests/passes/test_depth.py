"""Walks over graphs far deeper than Python's stack, with a join at every node: they must neither recurse nor repeat."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from gfcompile.geometry.convolution import Windows
from gfcompile.graph.crossing import Crossing
from gfcompile.graph.inputs import Inputs
from gfcompile.graph.walks import nodes_above
from gfcompile.ops import gf
from gfcompile.passes.fold_frozen import evaluate
from gfcompile.passes.hoist import Hoist
from gfcompile.passes.prefix import find_prefix
from gfcompile.step import Role, Step, Value
from tests.passes.tiny import network_step

aten = torch.ops.aten
DEPTH = 2 * sys.getrecursionlimit()
ONE_PATCH = Windows(1, 2, 0, 0, 2).as_list()  # both pixels of an axis


@dataclass
class Deep:
    """w's tower is frozen; x is multiplied with a tower of random numbers, activated, and summed up to the loss; the
    backward pass sums a tower of the activated map over patches."""

    step: Step
    frozen: fx.Node
    random: fx.Node
    map: fx.Node
    statistic: fx.Node


def deep() -> Deep:
    """By hand: to trace one of this depth takes minutes. Every floor of a tower is the sum of the one below twice."""
    graph = fx.Graph()
    with FakeTensorMode():
        maps, one, number = torch.empty(2, 1, 2, 2), torch.empty(2, 1, 1, 1), torch.empty((), dtype=torch.int64)

    def call(target: Any, *args: Any, value: Any = maps) -> fx.Node:
        node = graph.call_function(target, args)
        node.meta["val"] = value
        return node

    def tower(node: fx.Node) -> fx.Node:
        for _ in range(DEPTH):
            node = call(aten.add.Tensor, node, node)
        return node

    doors = [graph.placeholder(name) for name in ("x", "w", "seed")]
    x, w, seed = doors
    for node, value in zip(doors, (maps, maps, number), strict=True):
        node.meta["val"] = value
    random, frozen = tower(call(gf.uniform.default, seed, 0, [2, 1, 2, 2])), tower(w)
    activated = call(aten.relu.default, call(aten.mul.Tensor, call(aten.mul.Tensor, x, random), frozen))
    loss = call(aten.sum.default, activated, value=number)
    statistic = call(gf.patch_sum.default, tower(activated), ONE_PATCH, ONE_PATCH, value=one)
    graph.output((loss, call(aten.mul.Tensor, statistic, loss, value=one)))
    inputs = [Value(Role.INPUT, "x"), Value(Role.CONSTANT, "w"), Value(Role.SEED, "seed")]
    outputs = [Value(Role.LOSS, "loss"), Value(Role.GRADIENT, "w")]
    tensors = {"w": torch.ones(2, 1, 2, 2)}
    step = Step(fx.GraphModule({}, graph), inputs, outputs, network_step().plan, tensors)
    return Deep(step, frozen, random, activated, statistic)


def test_frozen_values_are_computed():
    made = deep()
    value = evaluate(made.step, made.frozen, Inputs(made.step))
    assert torch.equal(value, torch.full((2, 1, 2, 2), float("inf")))  # 2 ** DEPTH
    assert len(nodes_above([made.frozen])) == DEPTH + 1


def test_random_numbers_end_the_prefix():
    prefix = find_prefix(deep().step)
    assert [ending.reason for ending in prefix.endings] == ["random numbers are drawn in every step"]


@pytest.mark.slow
def test_a_statistic_moves_with_all_that_it_is_made_of():
    made = deep()
    crossing = Crossing(made.step)
    assert crossing.sources(made.statistic) == [made.map]
    assert made.map not in crossing.kept()  # a statistic of it is
    step = Hoist().run(made.step)
    crossing = Crossing(step)
    assert [node.target for node in crossing.saved()] == [gf.patch_sum.default]
    assert not crossing.forward_work


def test_a_map_that_a_gradient_reads_through_a_tower_is_kept():
    made = deep()
    tower = made.statistic.args[0]
    (gradient,) = made.statistic.users
    gradient.replace_input_with(made.statistic, tower)
    assert made.map in Crossing(made.step).kept()
