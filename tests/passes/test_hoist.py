"""hoist: patch sums stand right behind their source; only the order changes."""

import pytest
import torch
from torch import Tensor, nn

from gfcompile.passes.canonicalize import Canonicalize
from gfcompile.passes.filter import Filter
from gfcompile.passes.hoist import Hoist
from gfcompile.passes.remove_dead import RemoveDead
from gfcompile.passes.select import Select
from gfcompile.plan import Request
from tests.passes.tiny import (
    applied,
    assert_golden,
    assert_same_numbers,
    assert_second_run_changes_nothing,
    network_step,
    nodes,
    numbers,
    site_names,
    text,
    traced,
)

BEFORE = (Canonicalize(), Select(), Filter(), RemoveDead())
PATCH_SUM = torch.ops.gf.patch_sum.default


class Fork(nn.Module):
    """Two filtered convolutions that read the same tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 2, 3, padding=1)
        self.left = nn.Conv2d(2, 3, 3, padding=1)
        self.right = nn.Conv2d(2, 3, 3, padding=1)
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        return self.head((self.left(x) * self.right(x)).mean((2, 3)))


def test_moves_the_patch_sum_to_its_source():
    step = network_step(*BEFORE)
    assert_golden("hoist.before", step)
    assert_golden("hoist.after", Hoist().run(step))


def test_numbers_stay():
    step = network_step(*BEFORE)
    before = numbers(step)
    after = numbers(Hoist().run(step))
    assert len(site_names(step)) == 1
    assert_same_numbers(before, after)


def test_the_scale_moves_along():
    """A strided layer's x_tilde is scaled; the product, not the sum, crosses to the backward pass."""
    (patch_sum,) = nodes(network_step(*BEFORE, Hoist()), PATCH_SUM)
    assert patch_sum.prev is patch_sum.args[0]
    assert patch_sum.next.target is torch.ops.aten.mul.Scalar
    assert patch_sum.next.args[0] is patch_sum


def test_a_sum_over_the_input_itself_follows_the_placeholders():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 2))
    step = applied(traced(model, (1, 1, 5, 5), Request(layers=1)), *BEFORE, Hoist())
    (patch_sum,) = nodes(step, PATCH_SUM)
    assert patch_sum.prev is step.placeholders()[-1]


def test_finds_nothing_in_an_exact_step():
    step = network_step(*BEFORE, exact=True)
    before = text(step)
    assert text(Hoist().run(step)) == before
    assert site_names(step) == []


def fork_step():
    return applied(traced(Fork(), (1, 1, 5, 5), Request(layers=2)), *BEFORE)


def test_two_sums_of_one_source():
    step = fork_step()
    before = numbers(step)
    after = numbers(Hoist().run(step))
    assert_same_numbers(before, after)
    order = list(step.body.graph.nodes)
    source = order.index(nodes(step, PATCH_SUM)[0].args[0])
    assert {order.index(node) - source for node in nodes(step, PATCH_SUM)} == {1, 2}


def test_second_run():
    assert_second_run_changes_nothing(Hoist(), network_step(*BEFORE, Hoist()))


def test_second_run_with_two_sums_of_one_source():
    assert_second_run_changes_nothing(Hoist(), Hoist().run(fork_step()))


@pytest.mark.parametrize("layers", [1, 2])
def test_nothing_of_a_filtered_input_is_read_in_the_backward_pass(layers):
    """The point of the pass: after the patch sum, the convolution's own input has no reader behind the loss."""
    step = network_step(*BEFORE, Hoist(), layers=layers)
    order = {node: index for index, node in enumerate(step.body.graph.nodes)}
    loss = order[step.results()[0]]
    sources = {node.args[0] for node in nodes(step, PATCH_SUM)}
    readers = {user for source in sources for user in source.users if order[user] > loss}
    assert {str(user.target) for user in readers} <= {"aten.le.Scalar"}  # relu's own mask
