"""Reductions and all that is left: a thread a point or, for long sums to few points, the threads of a block together.

Nothing is added by atomics, so the order of every sum is fixed.
"""

from __future__ import annotations

from math import prod

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV

from gfcompile.codegen.schedules.blocks import Block, access, axis_loops, has_axis_loops, list_blocks, split_axes
from gfcompile.codegen.schedules.gpu.threads import BLOCK_THREADS, WARP, bind_flat, bind_single, is_bound
from gfcompile.codegen.schedules.inline import inline_epilogue, inline_injective
from gfcompile.targets import Target

_KNOWN = {0, 2}  # kinds of axes: data-parallel and reduction
_FEW_POINTS = 4096  # that do not fill a GPU with a thread each
_LONG = 64
_UNROLLED_TAPS = 9


def apply(sch: Schedule, target: Target) -> bool:
    """Takes everything: each block that is left after inlining is a kernel."""
    inline_injective(sch)
    schedule_rest(sch, target)
    return True


def schedule_rest(sch: Schedule, _target: Target) -> None:
    """Bind every block that no thread runs yet; an epilogue goes with its reduction."""
    while True:
        left = [block for block in list_blocks(sch) if not is_bound(sch, block)]
        if not left:
            return
        _schedule_block(sch, left[0])


def _schedule_block(sch: Schedule, block: Block) -> None:
    if not has_axis_loops(sch, block) or set(block.kinds) - _KNOWN or not block.kinds:
        bind_single(sch, block.rv)
        return
    space, reduce = split_axes(block, axis_loops(sch, block))
    if not reduce:
        bind_flat(sch, space)
    elif block.is_regular and prod(block.spatial) < _FEW_POINTS and prod(block.reduce) >= _LONG:
        _sum_together(sch, block, space, reduce)
    elif space:
        _sum_alone(sch, block, space, reduce)
    else:
        bind_single(sch, block.rv)


def _sum_alone(sch: Schedule, block: Block, space: list[LoopRV], reduce: list[LoopRV]) -> None:
    sch.reorder(*space, *reduce)
    thread = bind_flat(sch, space)
    if prod(block.reduce) <= _UNROLLED_TAPS:
        for loop in reduce:
            sch.unroll(loop)
    if len(block.node.writes) == 1:
        store = sch.cache_write(block.rv, 0, "local")
        sch.reverse_compute_at(store, thread, preserve_unit_loops=True)
        inline_epilogue(sch, store)


def _sum_together(sch: Schedule, block: Block, space: list[LoopRV], reduce: list[LoopRV]) -> None:
    """Threads share out the sum: all of a block one point's, or, where points are neighbours in memory, 32 points'."""
    length = prod(block.reduce)
    sch.reorder(*space, *reduce)
    side_by_side = bool(space) and all(access(load, block.spatial_vars[-1], 2) == "unit" for load in block.loads)
    flat = sch.fuse(*reduce) if len(reduce) > 1 else reduce[0]
    if side_by_side:
        _, part = sch.split(flat, [None, BLOCK_THREADS // WARP])
        points = sch.fuse(*space) if len(space) > 1 else space[0]
        outer, point = sch.split(points, [None, WARP])
        sch.bind(outer, "blockIdx.x")
        sch.bind(point, "threadIdx.x")
        sch.bind(part, "threadIdx.y")
        return
    threads = WARP
    while threads < BLOCK_THREADS and threads * 4 <= length:
        threads *= 2
    _, part = sch.split(flat, [None, threads])
    if space:
        sch.bind(sch.fuse(*space) if len(space) > 1 else space[0], "blockIdx.x")
    else:
        sch.bind(sch.add_unit_loop(sch.get_loops(block.rv)[0]), "blockIdx.x")
    sch.bind(part, "threadIdx.x")
