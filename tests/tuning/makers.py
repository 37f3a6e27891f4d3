"""What a pool's workers call in tests. A module of its own, since they import it."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import ScheduleError

from gfcompile.codegen.schedules import schedule
from gfcompile.codegen.schedules.choices import Decisions
from gfcompile.targets import Target
from gfcompile.tuning.space import Candidate, Drawn, draw
from tests.tuning.kernels import product

WRONG_TURNS, ABORTING_TURNS = 2, 4


def make(function: tirx.PrimFunc, target: Target, candidate: Candidate) -> Drawn:
    """The compiler's schedule, unless the decisions are to fail."""
    return Drawn(candidate, {}, _schedule(function, target, candidate.decisions))


def make_flawed(function: tirx.PrimFunc, target: Target, candidate: Candidate) -> Drawn:
    """Of `product()`: with some turns it computes a thousandth more, with others nothing is built."""
    drawn = draw(function, target, candidate)
    if drawn.candidate.decisions["turns"] == ABORTING_TURNS:
        os.abort()
    if drawn.candidate.decisions["turns"] == WRONG_TURNS:
        return Drawn(drawn.candidate, drawn.options, draw(product(1.001), target, candidate).function)
    return drawn


def _schedule(function: tirx.PrimFunc, target: Target, decisions: Decisions) -> tirx.PrimFunc:
    if "abort" in decisions:
        os.abort()  # as LLVM does
    if "tell" in decisions:
        Path(str(decisions["tell"])).write_text(f"{os.getpid()} ")
    if "hang" in decisions:
        time.sleep(3600)
    if "refuse" in decisions:
        raise ScheduleError("a trace\nof many lines\nrefuse: '1' is no option")
    if "bind" in decisions:  # to a GPU's threads, which a CPU has none of
        sch = Schedule(function.with_attr("global_symbol", "main"))
        (block,) = sch.get_child_blocks(sch.get_sblock("root"))
        sch.bind(sch.get_loops(block)[0], "threadIdx.x")
        return sch.mod["main"]
    return schedule(function, target)
