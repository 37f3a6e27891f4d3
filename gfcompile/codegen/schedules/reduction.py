"""Reductions: pooling, patch sums, channel sums, row sums, whole sums. No reduction axis is ever split by threads.

A sum to few outputs is first cut into a fixed number of partial sums (`rfactor`), whose axis is then spatial: the
cut depends on the shape alone, so the result is the same for every thread count.
"""

from __future__ import annotations

from collections.abc import Container
from math import prod

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, ScheduleError

from gfcompile.codegen.schedules.blocks import (
    Block,
    access,
    axis_loops,
    factor,
    find_block,
    has_axis_loops,
    list_blocks,
    split_axes,
)
from gfcompile.codegen.schedules.choices import DEFAULTS, Choices
from gfcompile.codegen.schedules.inline import inline_injective
from gfcompile.codegen.schedules.loops import (
    SERIAL_BELOW,
    parallelize,
    pick_tasks,
    schedule_injective,
    schedule_plain,
)
from gfcompile.codegen.schedules.tile import (
    bring_tail,
    choose_tile,
    close_tile,
    divisors,
    open_tile,
    pick_tile,
    vector_width,
)
from gfcompile.targets import Target

_FEW_TASKS = 8
_MOST_PARTS = 64
_UNROLLED_TAPS = 9
_VECTORS = 4


def apply(sch: Schedule, target: Target, choices: Choices) -> bool:
    """One or more reductions, each with the element-wise work around it."""
    if all(block.is_injective for block in list_blocks(sch)):
        return False
    inline_injective(sch)
    schedule_rest(sch, (), target, choices)
    return True


def schedule_rest(sch: Schedule, done: Container[str], target: Target, choices: Choices = DEFAULTS) -> None:
    """Give every block not in `done` a schedule of its own.

    Choices are named by the block's place: equal kernels may have other names for it.
    """
    names = [block.name for block in list_blocks(sch) if block.name not in done]
    finished: set[str] = set()
    for place, name in enumerate(names):
        if name not in finished:
            block = find_block(sch, name)
            if block.is_injective:
                schedule_injective(sch, block, target)
            else:
                finished |= schedule_reduction(sch, block, target, choices, place)


def schedule_reduction(sch: Schedule, block: Block, target: Target, choices: Choices, place: int) -> set[str]:
    """Schedule one reduction; returns the names of the later blocks it has scheduled with it."""
    if not block.is_regular or not block.reduce or not has_axis_loops(sch, block):
        schedule_plain(sch, block)
        return set()
    width = vector_width(block, target) if block.spatial else None
    parts = _partial_sums(sch, block, width, target)
    if parts is not None:
        tile_reduction(sch, parts, target, choices, place)
        final = find_block(sch, block.name)
        if final.spatial and vector_width(final, target) is not None:
            return tile_reduction(sch, final, target)
        schedule_plain(sch, final)
        return set()
    if width is not None and block.spatial:
        return tile_reduction(sch, block, target, choices, place)
    schedule_plain(sch, block)
    return set()


def tile_reduction(
    sch: Schedule, block: Block, target: Target, choices: Choices = DEFAULTS, place: int = 0
) -> set[str]:
    """Accumulate a few vectors of the last axis in registers; returns the name of the epilogue taken along."""
    width = vector_width(block, target)
    if width is None or not block.spatial:
        schedule_plain(sch, block)
        return set()
    block, tail = bring_tail(sch, block)
    proposed = choose_tile(block.spatial, width, [], target, most_vectors=_VECTORS)
    tile = pick_tile(choices, block.spatial, width, [], target, proposed, name=f"tile {place}")
    outer, inner = open_tile(sch, tail, tile)
    outer = parallelize(sch, outer, block.work, pick_tasks(choices, f"tasks {place}"))
    close_tile(sch, block, outer[-1], inner, tile, unroll_reduce=_UNROLLED_TAPS)
    return {tail.name}


def _partial_sums(sch: Schedule, block: Block, width: int | None, target: Target) -> Block | None:
    """Cut a reduction that leaves too few tasks, or that runs along the contiguous axis, into partial ones."""
    space = len(block.spatial)
    _, loops = split_axes(block, axis_loops(sch, block))
    try:
        if width is not None and space:
            if block.work < SERIAL_BELOW or prod(block.spatial) // (width * _VECTORS) >= _FEW_TASKS:
                return None
            part = _leading_part(sch, loops)
            return None if part is None else factor(sch, part, 0, block.name)
        along = all(access(load, block.reduce_vars[-1], target.lanes) != "gather" for load in block.loads)
        if not along or block.reduce[-1] % target.lanes or block.reduce[-1] < 2 * target.lanes:
            return None
        _, lane = sch.split(loops[-1], [None, target.lanes])
        part = factor(sch, lane, space, block.name)
        if block.work >= SERIAL_BELOW and prod(block.spatial) < _FEW_TASKS:
            leading = _leading_part(sch, split_axes(part, axis_loops(sch, part))[1])
            if leading is not None:
                tile_reduction(sch, factor(sch, leading, 0, part.name), target)
        return find_block(sch, part.name)
    except ScheduleError:
        return None  # a combiner TVM cannot split (argmax): the plain loops are right


def _leading_part(sch: Schedule, loops: list[LoopRV]) -> LoopRV | None:
    """The outermost reduction loops as one loop of 8 to 64 parts, or None where the axes do not allow it."""
    count, taken = 1, 0
    for loop in loops:
        extent = int(sch.get(loop).extent)
        if count * extent > _MOST_PARTS:
            cut = max(d for d in divisors(extent, _MOST_PARTS // count))
            if cut > 1:
                outer, _ = sch.split(loop, [cut, None])
                return sch.fuse(*loops[:taken], outer) if taken else outer
            break
        count *= extent
        taken += 1
        if count >= _FEW_TASKS:
            break
    if taken == len(loops):  # something must be left for each part to add up
        taken -= 1
        count //= int(sch.get(loops[taken]).extent)
    if not taken or count == 1:
        return None
    return sch.fuse(*loops[:taken]) if taken > 1 else loops[0]
