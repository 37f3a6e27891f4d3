"""Schedules: an ordered list of rules, each takes a function or says "not mine"."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import tvm
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import ScheduleError
from tvm_ffi.serialization import from_json_graph_str

from gfcompile.codegen.schedules import conv, depthwise, dot, elementwise, fallback, gemm, outer, reduction, winograd
from gfcompile.codegen.schedules.blocks import list_blocks
from gfcompile.codegen.schedules.choices import DEFAULTS, Choices, Decided, Decisions
from gfcompile.codegen.schedules.gpu import matmul, rest, rows, single
from gfcompile.codegen.schedules.workspace import Workspace, find_workspace
from gfcompile.targets import Target

__all__ = ["GPU_RULES", "RULES", "Rule", "Workspace", "choose_schedule", "find_workspace", "schedule"]


SCHEDULED = "gf.scheduled"  # the attribute of a function that was written with its loops


@dataclass(frozen=True)
class Rule:
    """A template: `apply` changes the schedule and returns True, or leaves it alone and returns False: "not mine".

    What it could do otherwise it asks of the choices.
    """

    name: str
    apply: Callable[[Schedule, Target, Choices], bool]


RULES = (  # most particular first; the last one takes everything
    Rule("winograd", winograd.apply),
    Rule("conv", conv.apply),
    Rule("depthwise", depthwise.apply),
    Rule("outer", outer.apply),
    Rule("gemm", gemm.apply),
    Rule("dot", dot.apply),
    Rule("elementwise", elementwise.apply),
    Rule("reduction", reduction.apply),
    Rule("fallback", fallback.apply),
)
GPU_RULES = (
    Rule("matmul", matmul.apply),
    Rule("rest", rest.apply),
    Rule("single", single.apply),
)


def schedule(func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """The function, scheduled by the first rule that takes it."""
    return choose_schedule(func, target)[1]


def choose_schedule(func: tirx.PrimFunc, target: Target) -> tuple[str, tirx.PrimFunc]:
    """(name of the rule, scheduled function). A function with no blocks to schedule comes back as it is ("none")."""
    if is_scheduled(func):
        return "none", rows.share_out(func) if target.kind == "cuda" else func
    sch = start(func)
    if not list_blocks(sch):
        return "none", func
    for rule in rules_for(target):
        try:
            if rule.apply(sch, target, DEFAULTS):
                return rule.name, finish(sch, func)
        except ScheduleError:
            sch = start(func)  # what the rule did before it failed
    return "none", func


def follow(template: str, decisions: Decisions, func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc | None:
    """The function, scheduled by this template with these decisions; None where one of them is no option here."""
    rule = next((rule for rule in rules_for(target) if rule.name == template), None)
    sch = start(func)
    try:
        if rule is not None and rule.apply(sch, target, Decided(decisions)):
            return finish(sch, func)
    except ScheduleError:
        return None
    return None


def rules_for(target: Target) -> tuple[Rule, ...]:
    return GPU_RULES if target.kind == "cuda" else RULES


def is_scheduled(func: tirx.PrimFunc) -> bool:
    """Whether it was written with its loops, so that there is nothing to choose."""
    return func.attrs is not None and SCHEDULED in func.attrs


def start(func: tirx.PrimFunc) -> Schedule:
    return Schedule(tvm.IRModule({"main": _copy(func)}))


def _copy(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A schedule may change the function it is given, and the next rule needs the first one."""
    copy = from_json_graph_str(tvm.ir.save_json(func))
    return copy.with_attr("global_symbol", "main")


def finish(sch: Schedule, func: tirx.PrimFunc) -> tirx.PrimFunc:
    """What became of `func`. A function private to its module has no global symbol: give it none."""
    attrs = dict(func.attrs.items()) if func.attrs is not None else {}
    bare = sch.mod["main"].without_attr("global_symbol")
    for key, value in attrs.items():
        bare = bare.with_attr(key, value)
    return bare
