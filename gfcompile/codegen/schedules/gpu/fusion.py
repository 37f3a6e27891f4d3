"""Element-wise work done where values are loaded or stored anyway."""

from __future__ import annotations

from math import prod

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV, ScheduleError
from tvm.s_tir.stmt import SBlockRealize
from tvm_ffi import structural_walk

from gfcompile.codegen.schedules.blocks import Block, same_point
from gfcompile.codegen.schedules.gpu.threads import is_bound


def inline_producers(sch: Schedule, block: SBlockRV) -> None:
    """Fold the injective blocks that `block` reads into it, and what those read in turn."""
    while any(_inline(sch, producer) for producer in sch.get_producers(block)):
        pass  # it reads others now


def _inline(sch: Schedule, producer: SBlockRV) -> bool:
    if not Block(producer, sch.get(producer)).is_injective:
        return False
    try:
        sch.compute_inline(producer)
    except ScheduleError:
        return False
    return True


def inline_epilogue(sch: Schedule, block: SBlockRV, own: int = 0) -> None:
    """Fold the injective consumers of `block` into it, one after another, as far as TVM can invert their indices.

    Each time TVM takes the consumer's bounds for the block's predicate and forgets the one before. That is the same
    for a consumer that works point by point, and for the first `own` ones, which undo what the schedule did to the
    result. Any other could find a place for what only pads a tile: such a block is left alone once it has a predicate.
    """
    while True:
        consumers = [Block(rv, sch.get(rv)) for rv in sch.get_consumers(block)]
        points = prod(map(int, Block(block, sch.get(block)).buffer.shape))
        if len(consumers) != 1 or not consumers[0].is_injective or is_bound(sch, consumers[0]):
            return
        if consumers[0].work > points:  # one that repeats values cannot be inverted, and TVM fails on it
            return
        if own <= 0 and not _is_pointwise(consumers[0], sch.get(block).writes[0].source) and _has_predicate(sch, block):
            return
        try:
            sch.reverse_compute_inline(consumers[0].rv)
        except ScheduleError:
            return
        own -= 1


def _is_pointwise(consumer: Block, buffer: tirx.Var) -> bool:
    loads = [load for load in consumer.loads if load.source.same_as(buffer)]
    return all(same_point(load.indices, consumer.spatial_vars) for load in loads)


def _has_predicate(sch: Schedule, block: SBlockRV) -> bool:
    realizes: list[SBlockRealize] = []
    structural_walk(sch.get(sch.get_loops(block)[0]), [(SBlockRealize, realizes.append)])
    (predicate,) = (realize.predicate for realize in realizes if realize.block.same_as(sch.get(block)))
    return not isinstance(predicate, tirx.IntImm)
