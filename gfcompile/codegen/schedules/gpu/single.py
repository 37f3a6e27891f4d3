"""What no template could bind: every block by one thread. Slow, and right."""

from __future__ import annotations

from tvm.s_tir import Schedule

from gfcompile.codegen.schedules.blocks import list_blocks
from gfcompile.codegen.schedules.choices import Choices
from gfcompile.codegen.schedules.gpu.threads import bind_single
from gfcompile.targets import Target


def apply(sch: Schedule, _target: Target, _choices: Choices) -> bool:
    """One thread for everything: always possible, so it is the last rule."""
    for block in list_blocks(sch):
        bind_single(sch, block.rv)
    return True
