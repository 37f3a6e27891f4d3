"""Loops handed out to the threads of a GPU."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from gfcompile.codegen.schedules.blocks import Block

WARP = 32


def bind_flat(sch: Schedule, loops: list[LoopRV], threads: Callable[[int], int]) -> LoopRV:
    """One thread per turn of the loops, neighbours in the last loop side by side; returns the thread's loop.

    `threads` says how many a block has, of so many in all.
    """
    work = prod(int(sch.get(loop).extent) for loop in loops)
    flat = sch.fuse(*loops) if len(loops) > 1 else loops[0]
    block, thread = sch.split(flat, [None, threads(work)])
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    return thread


def bind_single(sch: Schedule, block: SBlockRV) -> None:
    """One thread for everything: right for every block, and slow."""
    inside = [*sch.get_loops(block), block][0]
    thread = sch.add_unit_loop(inside)
    sch.bind(sch.add_unit_loop(thread), "blockIdx.x")
    sch.bind(thread, "threadIdx.x")


def is_bound(sch: Schedule, block: Block) -> bool:
    """Whether one of its loops belongs to threads already."""
    return any(sch.get(loop).kind == tirx.ForKind.THREAD_BINDING for loop in sch.get_loops(block.rv))
