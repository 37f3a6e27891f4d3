"""merge_equal: what the backward pass computes twice it computes once; the forward pass stays as it is."""

import torch
from torch import nn

from gfcompile.passes.canonicalize import Canonicalize
from gfcompile.passes.filter import Filter
from gfcompile.passes.merge_equal import MergeEqual
from gfcompile.passes.remove_dead import RemoveDead
from gfcompile.passes.select import Select
from gfcompile.step import Step
from tests.passes.nets import SHAPE, Dense, Residual, conv, plain, with_head
from tests.passes.tiny import (
    applied,
    assert_golden,
    assert_same_numbers,
    assert_second_run_changes_nothing,
    filtered,
    network_step,
    nodes,
    numbers,
    site_names,
    text,
)

aten, gf = torch.ops.aten, torch.ops.gf
BEFORE = (Canonicalize(), Select(), Filter(), RemoveDead())


class Fork(nn.Module):
    """One tensor read by three filtered convolutions, two of one kind: their patch sums are two, not three."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = conv(3, 2), nn.Linear(2, 2)
        self.left, self.right, self.point = conv(2, 2), conv(2, 2), nn.Conv2d(2, 2, 3, stride=2, padding=1)

    def forward(self, x):
        x = self.stem(x).relu()
        return self.head((self.left(x) + self.right(x)).mean((2, 3)) + self.point(x).mean((2, 3)))


def fork_step() -> Step:
    return applied(filtered(Fork(), (1, 3, 4, 4)), *BEFORE)


def test_equal_patch_sums_become_one():
    step = fork_step()
    assert_golden("merge_equal.before", step)
    assert len(nodes(step, gf.patch_sum.default)) == 4
    assert_golden("merge_equal.after", MergeEqual().run(step))
    assert len(nodes(step, gf.patch_sum.default)) == 3
    assert site_names(step)


def test_numbers_stay():
    """Exactly: nothing is computed otherwise."""
    for model in (Fork(), with_head(plain(3), nn.BatchNorm2d(4), Dense(plain()), Residual(plain(8, 8), nn.ReLU()))):
        step = applied(filtered(model, SHAPE, batchnorm="train"), *BEFORE)
        before = numbers(step)
        after = numbers(MergeEqual().run(step))
        assert site_names(step)
        assert all(torch.equal(before[value], after[value]) for value in before)


def test_a_chain_of_repetitions_goes_whole():
    """Equal operands first: then what is made of them is equal too."""
    step = network_step(*BEFORE)
    clean = text(MergeEqual().run(step))
    graph = step.body.graph
    output = graph.output_node()
    source = next(node for node in reversed(graph.nodes) if node.target is gf.patch_mean.default)
    with graph.inserting_before(output):
        chain = [graph.node_copy(source)]
        chain.append(graph.call_function(aten.neg.default, (source,)))
        chain.append(graph.call_function(aten.neg.default, (chain[0],)))
    for node in chain:
        node.meta["val"] = source.meta["val"]
    MergeEqual().run(step)
    assert site_names(step) == [chain[0].name, chain[2].name]
    RemoveDead().run(step)
    assert text(step) == clean


def test_other_arguments_are_other_things():
    """1 and 1.0 and True, one axis and another: none of these are repetitions."""
    step = network_step(*BEFORE, MergeEqual())
    graph = step.body.graph
    source = next(node for node in reversed(graph.nodes) if node.target is gf.patch_mean.default)
    calls = [
        (aten.mul.Scalar, (source, 1), {}),
        (aten.mul.Scalar, (source, 1.0), {}),
        (aten.sum.dim_IntList, (source, [2]), {}),
        (aten.sum.dim_IntList, (source, [3]), {}),
        (aten.sum.dim_IntList, (source, [3], True), {}),
        (aten._to_copy.default, (source,), {"dtype": torch.float32}),
        (aten._to_copy.default, (source,), {"dtype": torch.float64}),
    ]
    with graph.inserting_before(graph.output_node()):
        for target, args, kwargs in calls:
            graph.call_function(target, args, kwargs).meta["val"] = source.meta["val"]
    MergeEqual().run(step)
    assert site_names(step) == []


def test_the_forward_pass_is_left_alone():
    """Two equal nodes before the loss stay two."""
    step = fork_step()
    graph = step.body.graph
    first = next(node for node in graph.nodes if node.target is aten.relu.default)
    with graph.inserting_after(first):
        again = graph.node_copy(first)
    reader = next(node for node in first.users if node.target is aten.convolution.default)
    reader.replace_input_with(first, again)
    before = numbers(step)
    MergeEqual().run(step)
    assert len(nodes(step, aten.relu.default)) == 2
    assert_same_numbers(before, numbers(step))


def test_second_run():
    assert_second_run_changes_nothing(MergeEqual(), MergeEqual().run(fork_step()))
