"""hoist: patch sums, mask counts and packed masks stand right behind their sources; only the order changes."""

import warnings

import pytest
import torch
from torch import Tensor, nn

from gfcompile.graph.crossing import STATISTICS
from gfcompile.passes.canonicalize import Canonicalize
from gfcompile.passes.filter import Filter
from gfcompile.passes.hoist import Hoist
from gfcompile.passes.merge_equal import MergeEqual
from gfcompile.passes.pack_masks import PackMasks
from gfcompile.passes.remove_dead import RemoveDead
from gfcompile.passes.select import Select
from gfcompile.passes.sink import Sink
from gfcompile.settings.schema import Request
from gfcompile.step import Role, Step
from tests.passes.handwritten import assert_leaves, assert_rewrites
from tests.passes.nets import SHAPE, Residual, SqueezeExcite, conv, plain, with_head
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
    traced,
)

BEFORE = (Canonicalize(), Select(), Filter(), RemoveDead())
CALCULUS = (*BEFORE, MergeEqual(), Sink(), PackMasks())
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


def test_moves_a_patch_sum_and_its_scale_to_their_source():
    """A strided layer's x_tilde is scaled; the product, not the sum, crosses to the backward pass."""
    before = """
        def step(
            x,  # input x float32[1, 2, 4, 4]
        ):
            relu = aten.relu(x)
            neg = aten.neg(relu)
            loss = aten.sum(neg)
            expand = aten.expand(loss, [1, 2, 2, 2])
            sums = gf.patch_sum(relu, [2, 2, 0, 0, 4], [2, 2, 0, 0, 4])
            scaled = aten.mul.Scalar(sums, 0.25)
            mul = aten.mul.Tensor(expand, scaled)
            return (
                loss,  # loss loss
                mul,  # gradient w
            )
        """
    after = """
        def step(
            x,  # input x float32[1, 2, 4, 4]
        ):
            relu = aten.relu(x)
            sums_1 = gf.patch_sum(relu, [2, 2, 0, 0, 4], [2, 2, 0, 0, 4])
            scaled = aten.mul.Scalar(sums_1, 0.25)
            neg = aten.neg(relu)
            loss = aten.sum(neg)
            expand = aten.expand(loss, [1, 2, 2, 2])
            mul = aten.mul.Tensor(expand, scaled)
            return (
                loss,  # loss loss
                mul,  # gradient w
            )
        """
    assert_rewrites(Hoist(), before, after, ["sums"])


def test_a_sum_over_the_input_itself_follows_the_placeholders():
    before = """
        def step(
            x,  # input x float32[1, 2, 4, 4]
            target,  # target target float32[1, 2, 2, 2]
        ):
            loss = aten.sum(x)
            sums = gf.patch_sum(x, [2, 2, 0, 0, 4], [2, 2, 0, 0, 4])
            mul = aten.mul.Tensor(sums, target)
            return (
                loss,  # loss loss
                mul,  # gradient w
            )
        """
    after = """
        def step(
            x,  # input x float32[1, 2, 4, 4]
            target,  # target target float32[1, 2, 2, 2]
        ):
            sums_1 = gf.patch_sum(x, [2, 2, 0, 0, 4], [2, 2, 0, 0, 4])
            loss = aten.sum(x)
            mul = aten.mul.Tensor(sums_1, target)
            return (
                loss,  # loss loss
                mul,  # gradient w
            )
        """
    assert_rewrites(Hoist(), before, after, ["sums"])


def test_what_python_calls_equal_is_not_used_again():
    """4 and 4.0 make positions of two types."""
    before = """
        def step(
            x,  # input x float32[1, 2, 4, 4]
            target,  # target target float32[1, 2, 2, 2]
        ):
            places = aten.arange.start_step(0, 4, 1)
            taken = aten.index.Tensor(x, [None, None, places])
            loss = aten.sum(taken)
            ramp = aten.arange.start_step(0, 4.0, 1)
            mul = aten.mul.Tensor(x, ramp)
            sums = gf.patch_sum(mul, [2, 2, 0, 0, 4], [2, 2, 0, 0, 4])
            mul_1 = aten.mul.Tensor(sums, target)
            return (
                loss,  # loss loss
                mul_1,  # gradient w
            )
        """
    after = """
        def step(
            x,  # input x float32[1, 2, 4, 4]
            target,  # target target float32[1, 2, 2, 2]
        ):
            ramp_1 = aten.arange.start_step(0, 4.0, 1)
            mul_2 = aten.mul.Tensor(x, ramp_1)
            sums_1 = gf.patch_sum(mul_2, [2, 2, 0, 0, 4], [2, 2, 0, 0, 4])
            places = aten.arange.start_step(0, 4, 1)
            taken = aten.index.Tensor(x, [None, None, places])
            loss = aten.sum(taken)
            mul_1 = aten.mul.Tensor(sums_1, target)
            return (
                loss,  # loss loss
                mul_1,  # gradient w
            )
        """
    assert_rewrites(Hoist(), before, after, ["sums"])


def test_leaves_what_is_no_statistic():
    assert_leaves(
        Hoist(),
        """
        def step(
            x,  # input x float32[1, 2, 4, 4]
        ):
            relu = aten.relu(x)
            loss = aten.sum(relu)
            neg = aten.neg(relu)
            return (
                loss,  # loss loss
                neg,  # gradient w
            )
        """,
    )


def fork_step():
    return applied(traced(Fork(), (1, 1, 5, 5), Request(layers=2)), *BEFORE)


@pytest.mark.slow
def test_two_equal_sums_become_one():
    step = fork_step()
    before = numbers(step)
    assert len(nodes(step, PATCH_SUM)) == 2
    after = numbers(Hoist().run(step))
    assert_same_numbers(before, after)
    (patch_sum,) = nodes(step, PATCH_SUM)
    assert patch_sum.prev is patch_sum.args[0]
    assert_second_run_changes_nothing(Hoist(), step)


@pytest.mark.parametrize("layers", [1, 2])
def test_nothing_of_a_filtered_input_is_read_in_the_backward_pass(layers):
    """The point of the pass: after its statistics, the convolution's own input has no reader behind the loss."""
    step = network_step(*CALCULUS, Hoist(), layers=layers)
    order = {node: index for index, node in enumerate(step.body.graph.nodes)}
    sources = {node.args[0] for node in nodes(step, PATCH_SUM)}
    assert not {user for source in sources for user in source.users if order[user] > position_of_loss(step)}


def position_of_loss(step: Step) -> int:
    loss = step.results()[[value.role for value in step.outputs].index(Role.LOSS)]
    return list(step.body.graph.nodes).index(loss)


def masked_step(r: int = 4) -> Step:
    """conv-bn-relu-conv: patch sums of the input and the ReLU, counts of its mask, sums of the normalised map."""
    model = with_head(plain(3, 2), nn.BatchNorm2d(2), nn.ReLU(), conv(2, 2), shape=(1, 3, 8, 8))
    return applied(filtered(model, (1, 3, 8, 8), r=r), *CALCULUS)


@pytest.mark.slow
def test_moves_what_statistics_are_made_of():
    """The mask is computed before the loss, and neither it nor the ReLU lives on behind it."""
    step = masked_step()
    assert_golden("hoist.masks.before", step)
    assert_golden("hoist.masks.after", Hoist().run(step))
    order = list(step.body.graph.nodes)
    loss = position_of_loss(step)
    for node in order[:loss]:
        if any(order.index(user) > loss for user in node.users):
            assert node.meta["val"].dim() < 4 or tuple(node.meta["val"].shape[2:]) != (8, 8), f"{node} crosses the loss"


NETS = {
    "masks": lambda: (plain(3), nn.BatchNorm2d(4), nn.ReLU(), conv()),
    "joins": lambda: (conv(3, 4), nn.ReLU(), Residual(conv()), Residual(conv()), conv()),
    "derivatives": lambda: (conv(3, 4), nn.Hardswish(), SqueezeExcite(), conv(), nn.SiLU(), conv()),
    "gated": lambda: (conv(3, 8), nn.GLU(1), conv()),
    "pooled": lambda: (conv(3, 4), nn.ReLU(), nn.MaxPool2d(2), conv(), nn.ReLU(), conv()),
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "r"), [*((name, 4) for name in NETS), ("masks", 2), ("joins", 2)])
def test_only_the_order_changes(name, r):
    """The same numbers to the bit, the same nodes but for copies of shared forward work, nothing erased twice.

    At r = 4 there are no copies: two counts of one mask read one mask, before the loss as behind it.
    """
    step = applied(filtered(with_head(*NETS[name]()), SHAPE, r=r), *CALCULUS)
    before = numbers(step)
    kinds = sorted(str(node.target) for node in step.body.graph.nodes)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Hoist().run(step)
    after = numbers(step)
    assert site_names(step)
    assert all(torch.equal(before[value], after[value]) for value in before)
    assert set(map(str, kinds)) == {str(node.target) for node in step.body.graph.nodes}
    if r == 4:
        assert len(step.body.graph.nodes) <= len(kinds)
    order = list(step.body.graph.nodes)
    behind = [node for node in order[position_of_loss(step) :] if node.target in STATISTICS]
    assert {node.name for node in behind}.isdisjoint(site_names(step))
    assert_second_run_changes_nothing(Hoist(), step)


def test_a_statistic_of_what_is_kept_anyway_stays():
    """The exact convolution keeps the ReLU for its weight gradient: the other's patch sum costs nothing there."""

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.filtered, self.exact = conv(3, 4), conv(), conv()
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            x = self.stem(x).relu()
            return self.head((self.filtered(x) + self.exact(x)).mean((2, 3)))

    step = applied(filtered(Both(), SHAPE, exact=["exact"]), *CALCULUS, Hoist())
    order = list(step.body.graph.nodes)
    relu = next(node for node in order if node.target is torch.ops.aten.relu.default)
    (patch_sum,) = [user for user in relu.users if user.target is PATCH_SUM]
    assert order.index(patch_sum) > position_of_loss(step)
    assert patch_sum.name not in site_names(step)
