"""Inlining of element-wise chains, before a rule looks at what is left."""

from __future__ import annotations

from collections.abc import Container

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import ScheduleError

from gfcompile.codegen.schedules.blocks import list_blocks, writes_output


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
