"""Loops handed out to the threads of a GPU."""

from __future__ import annotations

from math import prod

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from gfcompile.codegen.schedules.blocks import Block

WARP = 32
BLOCK_THREADS = 256  # of kernels that share nothing: eight warps hide the latency of memory on every arch we know


def bind_flat(sch: Schedule, loops: list[LoopRV], threads: int = BLOCK_THREADS) -> LoopRV:
    """One thread a turn of the loops, neighbours in the last loop side by side; returns the thread's loop."""
    work = prod(int(sch.get(loop).extent) for loop in loops)
    flat = sch.fuse(*loops) if len(loops) > 1 else loops[0]
    block, thread = sch.split(flat, [None, min(threads, -(-work // WARP) * WARP)])
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
    return any(sch.get(loop).kind == tirx.ForKind.THREAD_BINDING for loop in sch.get_loops(block.rv))
