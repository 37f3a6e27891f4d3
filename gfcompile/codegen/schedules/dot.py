"""Products along a contiguous reduction, C[m,n] += A[m,k] * B[n,k]: vectors along k, lanes added at the end."""

from __future__ import annotations

from tvm.s_tir import Schedule

from gfcompile.codegen.schedules.blocks import (
    Block,
    access,
    ancestors,
    axis_loops,
    factor,
    find_block,
    list_blocks,
    split_axes,
)
from gfcompile.codegen.schedules.choices import Choices
from gfcompile.codegen.schedules.inline import inline_injective
from gfcompile.codegen.schedules.loops import parallelize, pick_tasks
from gfcompile.codegen.schedules.reduction import schedule_rest
from gfcompile.codegen.schedules.tile import bring_tail, choose_tile, open_tile, pick_tile
from gfcompile.targets import Target


def apply(sch: Schedule, target: Target, choices: Choices) -> bool:
    """Both operands run along the last reduction axis; its lanes become partial sums in registers."""
    anchors = [block for block in list_blocks(sch) if is_dot(block, target)]
    if not anchors:
        return False
    anchor = max(anchors, key=lambda block: block.work)
    inline_injective(sch, keep=ancestors(sch, anchor))
    anchor = find_block(sch, anchor.name)
    extents, work, axes = anchor.spatial, anchor.work, len(anchor.spatial)
    _, reduce = split_axes(anchor, axis_loops(sch, anchor))
    _, lane = sch.split(reduce[-1], [None, target.lanes])
    partial = factor(sch, lane, axes, anchor.name).rv
    anchor, tail = bring_tail(sch, find_block(sch, anchor.name))
    # choose_tile's "vectors" are columns here: each row and each column costs one vector load per step
    rows = list(range(axes - 2, -1, -1))[:2]
    tile = pick_tile(choices, extents, 1, rows, target, choose_tile(extents, 1, rows, target))
    outer, inner = open_tile(sch, tail, tile)
    outer = parallelize(sch, outer, work, pick_tasks(choices))
    for loop in inner:
        sch.unroll(loop)
    sch.compute_at(anchor.rv, outer[-1], preserve_unit_loops=True)
    # accumulators and the lanes read one by one must be two buffers, or LLVM keeps the former in memory
    spill = sch.cache_write(partial, 0, "local")
    sch.set_scope(spill, 0, "local")
    for rv in (spill, partial):
        sch.compute_at(rv, outer[-1], preserve_unit_loops=True)
    _unroll_all(sch, anchor)
    *rows, lanes = sch.get_loops(spill)[-(axes + 1) :]
    for loop in rows:
        sch.unroll(loop)
    sch.vectorize(lanes)
    _accumulate(sch, Block(partial, sch.get(partial)), axes)
    schedule_rest(sch, {anchor.name, tail.name, *(sch.get(rv).name_hint for rv in (spill, partial))}, target)
    return True


def is_dot(block: Block, target: Target) -> bool:
    """Whether it sums products of two runs of memory."""
    factors = block.factors
    if factors is None or not block.spatial or block.reduce[-1] % target.lanes:
        return False
    return all(access(load, block.reduce_vars[-1], target.lanes) == "unit" for load in factors)


def _unroll_all(sch: Schedule, block: Block) -> None:
    """The sum of a tile's lanes: short and straight."""
    for loop in sch.get_loops(block.rv)[-len(block.kinds) :]:
        sch.unroll(loop)


def _accumulate(sch: Schedule, partial: Block, axes: int) -> None:
    space, reduce = split_axes(partial, sch.get_loops(partial.rv)[-len(partial.kinds) :])
    sch.reorder(*reduce, *space)
    for loop in space[:-1]:
        sch.unroll(loop)
    sch.vectorize(space[-1])
    *zero, last = sch.get_loops(sch.decompose_reduction(partial.rv, reduce[0]))[-(axes + 1) :]
    for loop in zero:
        sch.unroll(loop)
    sch.vectorize(last)
