"""Inlining of element-wise chains, before a rule looks at what is left."""

from __future__ import annotations

from collections.abc import Container
from math import prod

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV, ScheduleError

from gfcompile.codegen.schedules.blocks import Block, list_blocks, writes_output


def inline_injective(sch: Schedule, keep: Container[str] = ()) -> None:
    """Fold every injective intermediate into its consumers.

    Kept: outputs, blocks named in `keep`, and costly values (exp, tanh, ...) with several readers or a reader that
    visits them more than once.
    """
    for block in list_blocks(sch):
        if not block.is_injective or block.name in keep or writes_output(sch, block):
            continue
        consumers = [sch.get(rv) for rv in sch.get_consumers(block.rv)]
        if not consumers or (block.is_costly and len(consumers) > 1):
            continue
        try:
            sch.compute_inline(block.rv)
        except ScheduleError:
            continue  # an index TVM cannot invert, or an opaque reader: it stays a stage of its own


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
        # one that repeats values cannot be inverted, and TVM fails on it
        if len(consumers) != 1 or not consumers[0].is_injective or consumers[0].work > points:
            return
        try:
            sch.reverse_compute_inline(consumers[0].rv)
        except ScheduleError:
            return
