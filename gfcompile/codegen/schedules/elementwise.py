"""Element-wise functions: inline the chain, run the outer loops in parallel, vectors along the last axis."""

from __future__ import annotations

from tvm.s_tir import Schedule

from gfcompile.codegen.schedules.blocks import find_block, list_blocks
from gfcompile.codegen.schedules.choices import Choices
from gfcompile.codegen.schedules.inline import inline_injective
from gfcompile.codegen.schedules.loops import schedule_injective
from gfcompile.targets import Target


def apply(sch: Schedule, target: Target, _choices: Choices) -> bool:
    """Injective blocks only: arithmetic, broadcasts, transposes, reshapes, concatenations, gathers."""
    if not all(block.is_injective for block in list_blocks(sch)):
        return False
    inline_injective(sch)
    for name in [block.name for block in list_blocks(sch)]:
        schedule_injective(sch, find_block(sch, name), target)
    return True
