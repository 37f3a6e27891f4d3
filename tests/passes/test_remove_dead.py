"""remove_dead: what no output needs goes; the step's own inputs stay."""

import torch

from gfcompile.passes.canonicalize import Canonicalize
from gfcompile.passes.filter import Filter
from gfcompile.passes.remove_dead import DOORS, RemoveDead
from gfcompile.passes.select import Select
from gfcompile.step import Role, Value
from tests.passes.tiny import (
    assert_golden,
    assert_same_numbers,
    assert_second_run_changes_nothing,
    network_step,
    numbers,
    site_names,
    text,
)

BEFORE = (Canonicalize(), Select(), Filter())


def test_drops_unread_nodes_and_inputs():
    step = network_step(*BEFORE)
    assert_golden("remove_dead.before", step)
    assert_golden("remove_dead.after", RemoveDead().run(step))


def test_an_unused_chain_goes_whole():
    step = network_step(*BEFORE, RemoveDead())
    clean = text(step)
    graph = step.body.graph
    source = next(node for node in graph.nodes if node.op == "call_function")
    with graph.inserting_before(graph.output_node()):
        first = graph.call_function(torch.ops.aten.relu.default, (source,))
        second = graph.call_function(torch.ops.aten.neg.default, (first,))
    for node in (first, second):
        node.meta["val"] = source.meta["val"]
    RemoveDead().run(step)
    assert site_names(step) == [second.name, first.name]
    assert text(step) == clean


def test_numbers_stay():
    step = network_step(*BEFORE)
    before = numbers(step)
    assert_same_numbers(before, numbers(RemoveDead().run(step)))


def test_inputs_that_nobody_reads_go_but_the_doors_stay():
    step = network_step(*BEFORE)
    assert Value(Role.BUFFER, "norm.num_batches_tracked") in step.inputs
    RemoveDead().run(step)
    assert Value(Role.BUFFER, "norm.num_batches_tracked") not in step.inputs
    sample_weight = step.placeholder(Role.SAMPLE_WEIGHT, "sample_weight")
    assert not sample_weight.users, "the loss of this test ignores the weights"
    assert {Role.INPUT, Role.TARGET, Role.SAMPLE_WEIGHT} <= {value.role for value in step.inputs}
    assert {Role.INPUT, Role.TARGET, Role.SAMPLE_WEIGHT, Role.LR} == DOORS


def test_second_run():
    assert_second_run_changes_nothing(RemoveDead(), network_step(*BEFORE, RemoveDead()))
