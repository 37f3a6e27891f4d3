"""pack_masks: a mask is kept as one bit a pixel where that is the least, as counts where those are."""

import pytest
import torch
from torch import nn

from gfcompile.passes.canonicalize import Canonicalize
from gfcompile.passes.filter import Filter
from gfcompile.passes.hoist import Hoist
from gfcompile.passes.merge_equal import MergeEqual
from gfcompile.passes.pack_masks import PackMasks
from gfcompile.passes.remove_dead import RemoveDead
from gfcompile.passes.select import Select
from gfcompile.passes.sink import Sink
from gfcompile.step import Role, Step
from tests.passes.handwritten import assert_leaves, assert_rewrites
from tests.passes.nets import SHAPE, Residual, conv, with_head
from tests.passes.tiny import (
    applied,
    assert_golden,
    duplicate,
    filtered,
    nodes,
    numbers,
    site_names,
    text,
)

gf, aten = torch.ops.gf, torch.ops.aten
BEFORE = (Canonicalize(), Select(), Filter(), RemoveDead(), MergeEqual(), Sink())
SMALL = (1, 3, 6, 6)


def step_of(*parts: nn.Module, shape=SHAPE, **plan) -> Step:
    return applied(filtered(with_head(*parts, shape=shape), shape, **plan), *BEFORE)


def read_step() -> Step:
    """Grids that do not nest: the ReLU's gradient exists at full resolution and reads the mask."""
    return step_of(conv(3, 2), nn.ReLU(), conv(2, 2), shape=SMALL, r={"0": 2, "2": 3})


def counted_step(r: int) -> Step:
    """Two joins: counts of both masks and of their product."""
    return step_of(conv(3, 2), *[Residual(conv(2, 2)) for _ in range(2)], shape=(1, 3, 8, 8), r=r)


def saved_bytes(step: Step) -> int:
    """Bytes of what is computed before the loss and read behind it, after hoisting."""
    order = {node: index for index, node in enumerate(step.body.graph.nodes)}
    loss = order[step.results()[[value.role for value in step.outputs].index(Role.LOSS)]]
    return sum(
        node.meta["val"].numel() * node.meta["val"].element_size()
        for node in order
        if node.op == "call_function" and order[node] < loss and any(order[user] > loss for user in node.users)
    )


@pytest.mark.slow
def test_counts_dearer_than_bits_count_bits():
    step = counted_step(2)
    assert_golden("pack_masks.counts.before", step)
    assert_golden("pack_masks.counts.after", PackMasks().run(step))
    assert not nodes(step, gf.mask_count.default)
    assert len(nodes(step, gf.pack_mask.default)) == 2


def test_large_patches_are_counted():
    """At r = 8 a map is one patch, a byte a channel: less than any bits."""
    step = counted_step(8)
    before = text(step)
    PackMasks().run(step)
    assert site_names(step) == []
    assert text(step) == before


@pytest.mark.slow
@pytest.mark.parametrize(("r", "joins"), [(1, 0), (2, 1), (2, 3), (3, 3), (4, 3), (8, 1)])
def test_never_keeps_more_than_without_it(r, joins):
    """The point of the pass, counted: what crosses the loss, in bytes."""
    step = step_of(conv(3, 4), nn.ReLU(), *[Residual(conv()) for _ in range(joins)], conv(), r=r)
    packed = applied(duplicate(step), PackMasks(), Hoist())
    assert saved_bytes(packed) <= saved_bytes(Hoist().run(step))


def test_masks_of_unequal_shapes_are_counted_whole():
    """Packed counts read masks of one shape; a gate a pixel beside a ReLU of every channel is not."""
    graph_step = counted_step(2)
    count = next(node for node in nodes(graph_step, gf.mask_count.default) if len(node.args[0]) == 1)
    (mask,) = count.args[0]
    graph = graph_step.body.graph
    with graph.inserting_before(count):
        narrow = graph.call_function(aten.slice.Tensor, (mask, 1, 0, 1))
    narrow.meta["val"] = mask.meta["val"][:, :1]
    for other in nodes(graph_step, gf.mask_count.default):
        if mask in other.args[0] and other is not count:
            other.replace_all_uses_with(count)
            graph.erase_node(other)
    count.args = ([mask, narrow], [True, True], *count.args[2:])
    before = numbers(graph_step)
    PackMasks().run(graph_step)
    assert count in graph.nodes
    after = numbers(graph_step)
    assert all(torch.equal(before[value], after[value]) for value in before)


READ = """
    def step(
        x,  # input x float32[1, 2, 4, 4]
    ):
        relu = aten.relu(x)
        loss = aten.sum(relu)
        le = aten.le.Scalar(relu, 0)
        zero = aten.scalar_tensor(0, dtype=torch.float32)
        expand = aten.expand(loss, [1, 2, 4, 4])
        where = aten.where.self(le, zero, expand)
        return (
            loss,  # loss loss
            where,  # gradient w
        )
    """


def test_a_mask_that_gradients_read_is_packed():
    after = """
        def step(
            x,  # input x float32[1, 2, 4, 4]
        ):
            relu = aten.relu(x)
            loss = aten.sum(relu)
            le = aten.le.Scalar(relu, 0)
            pack_mask_default = gf.pack_mask(le)
            zero = aten.scalar_tensor(0, dtype=torch.float32)
            expand = aten.expand(loss, [1, 2, 4, 4])
            unpack_mask_default = gf.unpack_mask(pack_mask_default, [1, 2, 4, 4])
            where = aten.where.self(unpack_mask_default, zero, expand)
            return (
                loss,  # loss loss
                where,  # gradient w
            )
        """
    assert_rewrites(PackMasks(), READ, after, ["le"])


def test_a_mask_whose_source_is_kept_stays():
    """A gradient reads the ReLU's output itself: bits would come on top."""
    assert_leaves(PackMasks(), READ.replace("expand(loss, [1, 2, 4, 4])", "mul.Tensor(relu, loss)"))
