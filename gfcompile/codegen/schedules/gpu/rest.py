"""Reductions and the rest: one thread per point or, for long sums to few points, the threads of a block together.

Nothing is added by atomics, so the order of every sum is fixed.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from math import prod

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV

from gfcompile.codegen.schedules.blocks import Block, access, axis_loops, has_axis_loops, list_blocks, split_axes
from gfcompile.codegen.schedules.choices import Choices
from gfcompile.codegen.schedules.gpu.fusion import inline_epilogue
from gfcompile.codegen.schedules.gpu.threads import WARP, bind_flat, bind_single, is_bound
from gfcompile.codegen.schedules.inline import inline_injective
from gfcompile.codegen.schedules.tile import divisors
from gfcompile.targets import Target

_COMBINED = (tirx.Add, tirx.Mul, tirx.Min, tirx.Max)
_KNOWN = {0, 2}  # kinds of axes: data-parallel and reduction
_FEW_POINTS = 4096  # that do not fill a GPU with a thread each
_LONG = 64
_UNROLLED_TAPS = 9
_USUAL_THREADS = 256  # a block: eight warps hide the latency of memory on every arch we know
_BLOCK_THREADS = (64, 128, _USUAL_THREADS, 512)
_PARTS = (8, 16, 32, 64, 128, 256, 512)  # threads that share one sum
_MOST_THREADS = 1024


def apply(sch: Schedule, _target: Target, choices: Choices) -> bool:
    """Takes everything: each block that is left after inlining is a kernel."""
    inline_injective(sch)
    schedule_rest(sch, choices)
    return True


def schedule_rest(sch: Schedule, choices: Choices) -> None:
    """Bind every block that no thread runs yet; an epilogue goes with its reduction."""
    for number in count():
        left = [block for block in list_blocks(sch) if not is_bound(sch, block)]
        if not left:
            return
        _schedule_block(sch, left[0], _Asking(choices, number))


@dataclass(frozen=True)
class _Asking:
    """The choices of one block: its place tells it from the others, for names may differ in equal kernels."""

    choices: Choices
    number: int

    def threads(self, work: int) -> int:
        """A block: whole warps, no more than there is work for."""
        most = -(-work // WARP) * WARP
        options = sorted({min(threads, most) for threads in _BLOCK_THREADS})
        return self.choices.pick(f"threads {self.number}", options, min(_USUAL_THREADS, most))

    def parts(self, beside: int, length: int, proposed: int) -> int:
        """Whole warps, however many sums lie beside each other; at least two terms per thread."""
        options = [parts for parts in _PARTS if 2 * parts <= length and WARP <= parts * beside <= _MOST_THREADS]
        options = [parts for parts in options if beside > 1 or parts >= WARP]
        return self.choices.pick(f"parts {self.number}", sorted({*options, proposed}), proposed)


def _schedule_block(sch: Schedule, block: Block, asking: _Asking) -> None:
    if not has_axis_loops(sch, block) or set(block.kinds) - _KNOWN or not block.kinds:
        bind_single(sch, block.rv)
        return
    space, reduce = split_axes(block, axis_loops(sch, block))
    if not reduce:
        bind_flat(sch, space, asking.threads)
    elif _can_be_shared_out(block) and prod(block.spatial) < _FEW_POINTS and prod(block.reduce) >= _LONG:
        _sum_together(sch, block, space, reduce, asking)
    elif space:
        _sum_alone(sch, block, space, reduce, asking)
    else:
        bind_single(sch, block.rv)


def _can_be_shared_out(block: Block) -> bool:
    """Whether TVM knows how to put the parts of several threads together."""
    return block.is_regular and isinstance(block.node.body.value, _COMBINED)


def _sum_alone(sch: Schedule, block: Block, space: list[LoopRV], reduce: list[LoopRV], asking: _Asking) -> None:
    """One thread per point of the result, which it keeps in a register until the epilogue is done."""
    if not block.is_regular:
        sch.reorder(*space, *reduce)
        bind_flat(sch, space, asking.threads)
        return
    store = sch.cache_write(block.rv, 0, "local")
    inline_epilogue(sch, store)
    # bound from the store's side, whose predicate then holds for both where threads are left over
    thread = bind_flat(sch, sch.get_loops(store), asking.threads)
    sch.compute_at(block.rv, thread, preserve_unit_loops=True)
    if prod(block.reduce) <= _UNROLLED_TAPS:
        for loop in split_axes(block, sch.get_loops(block.rv)[-len(block.kinds) :])[1]:
            sch.unroll(loop)


def _sum_together(sch: Schedule, block: Block, space: list[LoopRV], reduce: list[LoopRV], asking: _Asking) -> None:
    """Threads share out the sum: all of a block one point's, or, where points are neighbours in memory, several's."""
    sch.reorder(*space, *reduce)
    flat = sch.fuse(*reduce) if len(reduce) > 1 else reduce[0]
    if not space:
        space = [sch.add_unit_loop(flat)]
    points = sch.fuse(*space) if len(space) > 1 else space[0]
    # a divisor: a sum of several threads is stored without a predicate
    beside = max(divisors(prod(block.spatial), WARP)) if _is_side_by_side(block) else 1
    parts = WARP // 2 if beside > 1 else WARP
    while parts * beside < _USUAL_THREADS and parts * 4 <= prod(block.reduce):
        parts *= 2
    parts = asking.parts(beside, prod(block.reduce), parts)
    _, part = sch.split(flat, [None, parts])
    if beside == 1:
        sch.bind(points, "blockIdx.x")
        sch.bind(part, "threadIdx.x")
        return
    outer, point = sch.split(points, [None, beside])
    sch.bind(outer, "blockIdx.x")
    sch.bind(point, "threadIdx.x")
    sch.bind(part, "threadIdx.y")


def _is_side_by_side(block: Block) -> bool:
    """Whether neighbouring points read neighbours in memory."""
    return bool(block.spatial) and all(access(load, block.spatial_vars[-1], 2) == "unit" for load in block.loads)
