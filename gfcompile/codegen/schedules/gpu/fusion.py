"""Element-wise work done where values are loaded or stored anyway."""

from __future__ import annotations

from math import prod

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV, ScheduleError

from gfcompile.codegen.schedules.blocks import Block
from gfcompile.codegen.schedules.gpu.threads import is_bound


def inline_producers(sch: Schedule, block: SBlockRV) -> None:
    """Fold the injective blocks that `block` reads into it, and what those read in turn."""
    for producer in sch.get_producers(block):
        if not Block(producer, sch.get(producer)).is_injective:
            continue
        try:
            sch.compute_inline(producer)
        except ScheduleError:
            continue
        inline_producers(sch, block)
        return


def inline_epilogue(sch: Schedule, block: SBlockRV) -> None:
    """Fold the injective consumers of `block` into it, one after another, as far as TVM can invert their indices."""
    while True:
        consumers = [Block(rv, sch.get(rv)) for rv in sch.get_consumers(block)]
        points = prod(map(int, Block(block, sch.get(block)).buffer.shape))
        if len(consumers) != 1 or not consumers[0].is_injective or is_bound(sch, consumers[0]):
            return
        if consumers[0].work > points:  # one that repeats values cannot be inverted, and TVM fails on it
            return
        try:
            sch.reverse_compute_inline(consumers[0].rv)
        except ScheduleError:
            return
