"""The last resort: right for every function, fast for none."""

from __future__ import annotations

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import ScheduleError

from gfcompile.codegen.schedules.blocks import find_block, list_blocks
from gfcompile.codegen.schedules.choices import Choices
from gfcompile.codegen.schedules.loops import schedule_plain
from gfcompile.targets import Target


def apply(sch: Schedule, target: Target, _choices: Choices) -> bool:
    """Leading spatial loops of each block in parallel; a block that refuses stays serial."""
    for name in [block.name for block in list_blocks(sch)]:
        try:
            schedule_plain(sch, find_block(sch, name))
        except ScheduleError:
            continue
    return True
