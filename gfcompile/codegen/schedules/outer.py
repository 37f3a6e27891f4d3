"""Sums of outer products, C[.., i, .., j] += A[k, .., i] * B[k, .., j] over many rows k: the gradients of weights.

Every row touches the whole result, so the rows are taken in slices: a slice of A and of B is packed in the order in
which register tiles read it (rows apart by a power of two would share a few lines of the cache), the whole of a task's
part of C passes over it, and is then added to the sum. No reduction is split by threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod

from tvm.ir.expr import TensorLoad
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV, ScheduleError

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
from gfcompile.codegen.schedules.reduction import schedule_rest
from gfcompile.codegen.schedules.tile import Tile, choose_tile, divisors, pick_tile, pick_turns, vector_width
from gfcompile.targets import Target

_SLICE = 256  # rows, at most
_FEW_ROWS = 32  # in a slice: more of them are sought
_UNROLLED_ROWS = 4
_OFFERED_PARTS = 12


@dataclass(frozen=True)
class Outer:
    """The sum: vectors run along its last axis, and along `rows` the other operand is contiguous."""

    anchor: Block
    rows: int
    width: int


def apply(sch: Schedule, target: Target, choices: Choices) -> bool:
    """The heaviest such sum; other blocks get plain schedules."""
    found = [outer for block in list_blocks(sch) if (outer := match(block, target)) is not None]
    if not found:
        return False
    outer = max(found, key=lambda each: each.anchor.work)
    name, extents = outer.anchor.name, outer.anchor.spatial
    inline_injective(sch, keep=ancestors(sch, outer.anchor))
    plane = [extents[outer.rows], extents[-1]]
    tile = pick_tile(choices, plane, outer.width, [0], target, choose_tile(plane, outer.width, [0], target))
    offered = list_parts(extents, outer.rows, tile, target)
    parts = choices.pick("parts", offered[:_OFFERED_PARTS], offered[0])
    if _is_one_slice(outer.anchor.reduce):
        at, partial = _arrange_tasks(sch, find_block(sch, name), parts, outer), name
    else:
        most = choices.pick("slice", (64, 128, _SLICE, 512, 1024), _SLICE)
        partial = factor(sch, _cut_slices(sch, find_block(sch, name), most), 0, name).name
        at = _arrange_sum(sch, find_block(sch, name), parts, outer)
        sch.compute_at(find_block(sch, partial).rv, at, preserve_unit_loops=True)
    done = _arrange_slice(sch, find_block(sch, partial), at, tile, outer, choices)
    schedule_rest(sch, {name, partial, *(sch.get(rv).name_hint for rv in done)}, target)
    return True


def match(block: Block, target: Target) -> Outer | None:
    """Whether each operand is contiguous along an axis of its own, and there are many rows."""
    factors = block.factors
    if factors is None or len(block.spatial) < 2 or slice_rows(block.reduce) is None:
        return None
    width = vector_width(block, target)
    if width is None or width == 1:
        return None
    *others, last = block.spatial_vars
    vectors = [load for load in factors if access(load, last, width) == "unit"]
    if len(vectors) != 1:
        return None
    (scalars,) = (load for load in factors if load is not vectors[0])
    rows = [axis for axis, var in enumerate(others) if access(scalars, var, 2) == "unit"]
    if len(rows) != 1 or access(vectors[0], others[rows[0]], 2) != "same":
        return None
    return Outer(block, rows[0], width)


def _is_one_slice(reduce: list[int]) -> bool:
    return prod(reduce) <= _SLICE


def slice_rows(reduce: list[int], most: int = _SLICE) -> tuple[int, int] | None:
    """(axis, rows of it in a slice), all axes after it whole; None for few rows, or where no slice is small."""
    if _is_one_slice(reduce):
        return (0, reduce[0]) if prod(reduce) >= _FEW_ROWS else None
    count = 1
    for axis in range(len(reduce) - 1, -1, -1):
        if count * reduce[axis] <= most:
            count *= reduce[axis]
            continue
        rows = max(divisors(reduce[axis], most // count)) if count < _FEW_ROWS else 1
        return (axis, rows) if count * rows > 1 else None
    return None


def list_parts(extents: list[int], rows: int, tile: Tile, target: Target) -> list[tuple[int, int]]:
    """Tasks along the first axis (one if that is `rows`) and along `rows`, best first.

    Best is enough for all cores, a task's part of C in cache where that can be, and least to read.
    """
    blocks = 1 if rows == 0 else extents[0]
    taps = prod(extents) // (blocks * extents[rows] * extents[-1])

    def cost(parts: tuple[int, int]) -> tuple[bool, bool, int]:
        columns, lines = blocks // parts[0] * extents[-1], extents[rows] // parts[1]
        tasks = parts[0] * parts[1]
        return tasks < target.cores, 4 * taps * columns * lines > target.cache // 2, tasks * (columns + lines)

    return sorted(product(divisors(blocks, blocks), divisors(extents[rows] // tile.sizes[0], extents[rows])), key=cost)


def _cut_slices(sch: Schedule, anchor: Block, most: int) -> LoopRV:
    """Split the reduction into slices of at most so many rows; returns the loop of slices."""
    _, loops = split_axes(anchor, axis_loops(sch, anchor))
    found = slice_rows(anchor.reduce, most)
    if found is None:
        raise ScheduleError(f"{anchor.name}: no slices of {most} rows")
    axis, rows = found
    outer = loops[: axis + 1]
    if rows > 1:
        outer[-1], _ = sch.split(outer[-1], [None, rows])
    return sch.fuse(*outer) if len(outer) > 1 else outer[0]


def _cut_tasks(sch: Schedule, space: list[LoopRV], parts: tuple[int, int], outer: Outer) -> list[LoopRV]:
    """Split the axes of C into `parts`; `space` keeps the inner loops, the outer ones are returned."""
    tasks = []
    for axis, count in ((0, parts[0]), (outer.rows, parts[1])):
        if count > 1:
            task, space[axis] = sch.split(space[axis], [count, None])
            tasks.append(task)
    return tasks


def _arrange_tasks(sch: Schedule, total: Block, parts: tuple[int, int], outer: Outer) -> LoopRV:
    """All rows are one slice, and C is written once; returns the loop of tasks."""
    space, reduce = split_axes(total, axis_loops(sch, total))
    tasks = _cut_tasks(sch, space, parts, outer)
    if not tasks:
        return sch.add_unit_loop(space[0])
    sch.reorder(*tasks, *space, *reduce)
    task = sch.fuse(*tasks) if len(tasks) > 1 else tasks[0]
    sch.parallel(task)
    return task


def _arrange_sum(sch: Schedule, total: Block, parts: tuple[int, int], outer: Outer) -> LoopRV:
    """Tasks, then slices, then the part of C that each slice is added to; returns the loop of slices."""
    inside, (slices,) = split_axes(total, axis_loops(sch, total))
    tasks = _cut_tasks(sch, inside, parts, outer)
    vectors, lane = sch.split(inside[-1], [None, outer.width])
    sch.reorder(*tasks, slices, *inside[:-1], vectors, lane)
    sch.vectorize(lane)
    if tasks:
        sch.parallel(sch.fuse(*tasks) if len(tasks) > 1 else tasks[0])
    sch.vectorize(sch.get_loops(sch.decompose_reduction(total.rv, slices))[-1])
    return slices


def _arrange_slice(
    sch: Schedule, partial: Block, at: LoopRV, tile: Tile, outer: Outer, choices: Choices
) -> list[SBlockRV]:
    """One slice's part of C, a register tile at a time; returns the blocks that pack slices and store tiles."""
    widths = [
        tile.sizes[1 if access(load, partial.spatial_vars[-1], outer.width) == "unit" else 0] for load in _pair(partial)
    ]
    packs = [sch.cache_read(partial.rv, operand, "global") for operand in range(2)]
    for pack, wide in zip(packs, widths, strict=True):
        _arrange_pack(sch, pack, at, wide, outer.width)
    space, reduce = split_axes(partial, sch.get_loops(partial.rv)[-len(partial.kinds) :])
    rows = outer.rows + len(space) - len(outer.anchor.spatial)  # after the axis of slices, where there is one
    lines, line = sch.split(space[rows], [None, tile.sizes[0]])
    vectors, vector, lane = sch.split(space[-1], [None, tile.sizes[1] // tile.width, tile.width])
    others = [loop for axis, loop in enumerate(space[:-1]) if axis != rows]
    extent = int(sch.get(reduce[-1]).extent)
    few = pick_turns(choices, extent, max(divisors(extent, _UNROLLED_ROWS)))
    reduce[-1:] = sch.split(reduce[-1], [None, few])
    sch.reorder(*others, lines, vectors, *reduce, line, vector, lane)
    for loop in (reduce[-1], line, vector):
        sch.unroll(loop)
    sch.vectorize(lane)
    registers = sch.cache_write(partial.rv, 0, "local")
    sch.reverse_compute_at(registers, vectors, preserve_unit_loops=True)
    stored = sch.get_loops(registers)[-len(space) :]
    *_, last = stored
    wide, last = sch.split(last, [None, tile.width])
    for loop in (stored[rows], wide):
        sch.unroll(loop)
    sch.vectorize(last)
    *_, line, vector, lane = sch.get_loops(sch.decompose_reduction(partial.rv, reduce[0]))
    sch.unroll(line)
    sch.unroll(vector)
    sch.vectorize(lane)
    return [*packs, registers]


def _arrange_pack(sch: Schedule, pack: SBlockRV, at: LoopRV, wide: int, width: int) -> None:
    """Columns in groups of `wide`, and in each the rows one after the other."""
    sch.transform_layout(pack, ("write", 0), lambda *at: [at[-1] // wide, *at[:-1], at[-1] % wide])
    sch.compute_at(pack, at, preserve_unit_loops=True)
    *_, last = sch.get_loops(pack)
    sch.vectorize(sch.split(last, [None, min(wide, width)])[1])


def _pair(block: Block) -> tuple[TensorLoad, TensorLoad]:
    factors = block.factors
    assert factors is not None  # the rule looked
    return factors
