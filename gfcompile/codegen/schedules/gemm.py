"""Matrix products of every shape: linear layers, channel mixes, strided input gradients, batched products."""

from __future__ import annotations

from math import prod

from tvm.s_tir import Schedule

from gfcompile.codegen.schedules.blocks import Block, access, ancestors, find_block, list_blocks
from gfcompile.codegen.schedules.choices import Choices
from gfcompile.codegen.schedules.inline import inline_injective
from gfcompile.codegen.schedules.loops import parallelize, pick_tasks
from gfcompile.codegen.schedules.reduction import schedule_rest
from gfcompile.codegen.schedules.tile import (
    bring_tail,
    choose_tile,
    close_tile,
    open_tile,
    pick_tile,
    pick_turns,
    pick_width,
    vector_width,
)
from gfcompile.targets import Target

_ROW_AXES = 3
_UNROLLED_REDUCTION = 4
_ORDERS = ("rows", "columns")  # outermost


def apply(sch: Schedule, target: Target, choices: Choices) -> bool:
    """The heaviest C += A * B whose last axis is contiguous in an operand; other blocks get plain schedules."""
    anchors = [block for block in list_blocks(sch) if is_product(block, target)]
    if not anchors:
        return False
    anchor = max(anchors, key=lambda block: block.work)
    stages = ancestors(sch, anchor)
    inline_injective(sch, keep=stages)
    anchor = find_block(sch, anchor.name)
    width, factors = pick_width(choices, anchor, target), anchor.factors
    assert width is not None
    assert factors is not None
    axes = len(anchor.spatial)
    rows = list(range(axes - 2, -1, -1))[:_ROW_AXES]
    tile = pick_tile(choices, anchor.spatial, width, rows, target, choose_tile(anchor.spatial, width, rows, target))
    panel = next(load for load in factors if access(load, anchor.spatial_vars[-1], width) == "unit")
    large = prod(int(d) for d in panel.source.shape) * 4 > target.cache // 2
    anchor, tail = bring_tail(sch, anchor)
    outer, inner = open_tile(sch, tail, tile)
    if len(outer) > 1 and choices.pick("order", _ORDERS, _ORDERS[large]) == "columns":
        outer = [outer[-1], *outer[:-1]]
        sch.reorder(*outer)
    outer = parallelize(sch, outer, anchor.work, pick_tasks(choices))
    turns = pick_turns(choices, anchor.reduce[-1])
    close_tile(sch, anchor, outer[-1], inner, tile, _UNROLLED_REDUCTION, turns)
    schedule_rest(sch, {anchor.name, tail.name}, target)
    return True


def is_product(block: Block, target: Target) -> bool:
    """Whether it is a product whose last axis fills vectors of one operand."""
    factors = block.factors
    if factors is None or not block.spatial:
        return False
    width = vector_width(block, target)
    if width is None or width == 1:
        return False
    return any(access(load, block.spatial_vars[-1], width) == "unit" for load in factors)
