"""merge_equal: what the backward pass computes twice it computes once; the forward pass stays as it is."""

import pytest
import torch
from torch import nn

from gfcompile.passes.canonicalize import Canonicalize
from gfcompile.passes.filter import Filter
from gfcompile.passes.merge_equal import MergeEqual
from gfcompile.passes.remove_dead import RemoveDead
from gfcompile.passes.select import Select
from tests.passes.handwritten import assert_leaves, assert_rewrites
from tests.passes.nets import conv
from tests.passes.tiny import (
    applied,
    assert_second_run_changes_nothing,
    filtered,
    numbers,
    site_names,
)

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


@pytest.mark.slow
def test_numbers_stay():
    """Exactly: nothing is computed otherwise."""
    step = applied(filtered(Fork(), (1, 3, 4, 4), batchnorm="train"), *BEFORE)
    before = numbers(step)
    after = numbers(MergeEqual().run(step))
    assert site_names(step)
    assert all(torch.equal(before[value], after[value]) for value in before)
    assert_second_run_changes_nothing(MergeEqual(), step)


def test_a_chain_of_repetitions_goes_whole():
    """Equal operands first: then what is made of them is equal too."""
    before = """
        def step(
            x,  # input x float32[1, 2, 4, 4]
        ):
            loss = aten.sum(x)
            sums = gf.patch_sum(x, [2, 2, 0, 0, 4], [2, 2, 0, 0, 4])
            exp = aten.exp(sums)
            again = gf.patch_sum(x, [2, 2, 0, 0, 4], [2, 2, 0, 0, 4])
            exp_again = aten.exp(again)
            mul = aten.mul.Tensor(exp, exp_again)
            return (
                loss,  # loss loss
                mul,  # gradient w
            )
        """
    after = """
        def step(
            x,  # input x float32[1, 2, 4, 4]
        ):
            loss = aten.sum(x)
            sums = gf.patch_sum(x, [2, 2, 0, 0, 4], [2, 2, 0, 0, 4])
            exp = aten.exp(sums)
            mul = aten.mul.Tensor(exp, exp)
            return (
                loss,  # loss loss
                mul,  # gradient w
            )
        """
    assert_rewrites(MergeEqual(), before, after, ["again", "exp_again"])


def test_other_arguments_are_other_things():
    """1 and 1.0 and True, one axis and another: none of these are repetitions."""
    assert_leaves(
        MergeEqual(),
        """
        def step(
            x,  # input x float32[2, 3]
        ):
            loss = aten.sum(x)
            whole = aten.mul.Scalar(x, 1)
            real = aten.mul.Scalar(x, 1.0)
            truth = aten.mul.Scalar(x, True)
            rows = aten.sum.dim_IntList(x, [0])
            columns = aten.sum.dim_IntList(x, [1])
            kept = aten.sum.dim_IntList(x, [1], True)
            float = aten._to_copy(x, dtype=torch.float32)
            double = aten._to_copy(x, dtype=torch.float64)
            return (
                loss,  # loss loss
            )
        """,
    )


def test_the_forward_pass_is_left_alone():
    """Two equal nodes before the loss stay two, and one after it that is equal to them stays too."""
    assert_leaves(
        MergeEqual(),
        """
        def step(
            x,  # input x float32[2, 3]
        ):
            relu = aten.relu(x)
            again = aten.relu(x)
            mul = aten.mul.Tensor(relu, again)
            loss = aten.sum(mul)
            once_more = aten.relu(x)
            return (
                loss,  # loss loss
                once_more,  # gradient w
            )
        """,
    )
