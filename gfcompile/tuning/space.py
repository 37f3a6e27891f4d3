"""The space of a kernel: every template that takes it, and in each of them every choice it leaves.

Of a convolution that is open, its algorithms stand in the place of templates, each with the choices of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import ScheduleError

from gfcompile.codegen.kernels.open_convolution import compute_by, read_open
from gfcompile.codegen.schedules import (
    choose_schedule,
    find_workspace,
    finish,
    is_scheduled,
    rules_for,
    schedule,
    start,
)
from gfcompile.codegen.schedules.choices import Choices, Decisions, Option
from gfcompile.codegen.tuned.algorithms import ALGORITHMS, name_of
from gfcompile.geometry.winograd import Convolution, choose_edge
from gfcompile.targets import Target

_Option = TypeVar("_Option", bound=Option)
# the templates worth trying on what the compiler gives to one; those that are missing here ask for nothing
_TRIED = {
    "winograd": ("winograd",),
    "conv": ("conv", "gemm"),
    "depthwise": ("depthwise",),
    "outer": ("outer", "gemm"),
    "gemm": ("gemm", "dot"),
    "dot": ("dot", "gemm"),
    "reduction": ("reduction",),
    "matmul": ("matmul", "rest"),
    "rest": ("rest",),
}
_MOST_SCRATCH = 16 << 20  # bytes per thread


@dataclass(frozen=True, eq=False)
class Candidate:
    """A template and what is decided in it; what is not, it decides itself."""

    template: str
    decisions: Decisions = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, tuple[tuple[str, Option], ...]]:
        """The same for equal candidates."""
        return self.template, tuple(sorted(self.decisions.items()))


@dataclass(frozen=True)
class Drawn:
    """A candidate as it came out: every choice that was asked, with its options, and the scheduled kernel.

    `prepare`, where there is one, makes of its weights what the kernel takes in their place, once.
    """

    candidate: Candidate
    options: Mapping[str, tuple[Option, ...]]
    function: tirx.PrimFunc
    prepare: tirx.PrimFunc | None = None


class Sampled(Choices):
    """Decides by MetaSchedule's sampling instruction, so that the schedule's trace holds every decision.

    What is wanted is taken where it is an option, what is proposed elsewhere.
    """

    def __init__(self, sch: Schedule, wanted: Decisions) -> None:
        self._sch, self._wanted = sch, wanted
        self.options: dict[str, tuple[Option, ...]] = {}
        self.decisions: dict[str, Option] = {}

    def pick(self, name: str, options: Sequence[_Option], proposed: _Option) -> _Option:
        wanted = self._wanted.get(name)
        position = next((at for at, option in enumerate(options) if option == wanted), list(options).index(proposed))
        count = len(options)
        index = self._sch.sample_categorical(list(range(count)), [1 / count] * count, decision=position)
        option = options[int(self._sch.get(index))]
        self.options[name], self.decisions[name] = tuple(options), option
        return option


def schedule_function(
    candidate: Candidate, target: Target, taken: Callable[[Sampled], None] = lambda _: None
) -> Callable[[Schedule], None]:
    """The candidate as MetaSchedule's space generators take it; a ScheduleError where the template does not apply."""
    rule = next((rule for rule in rules_for(target) if rule.name == candidate.template), None)

    def apply(sch: Schedule) -> None:
        choices = Sampled(sch, candidate.decisions)
        if rule is None or not rule.apply(sch, target, choices):
            raise ScheduleError(f"template '{candidate.template}' does not take this kernel")
        taken(choices)

    return apply


def draw(function: tirx.PrimFunc, target: Target, candidate: Candidate) -> Drawn:
    """Schedule the kernel so; a ScheduleError where that cannot be, or would take too much memory."""
    convolution = read_open(function)
    if convolution is not None:
        return _draw_open(convolution, target, candidate)
    found: list[Sampled] = []
    sch = start(function)
    schedule_function(candidate, target, found.append)(sch)
    (choices,) = found
    scheduled = finish(sch, function)
    if target.kind == "cpu" and find_workspace(scheduled).each > _MOST_SCRATCH:
        raise ScheduleError(f"{candidate.template}: more than {_MOST_SCRATCH >> 20} MB of scratch per thread")
    return Drawn(Candidate(candidate.template, dict(choices.decisions)), choices.options, scheduled)


def _draw_open(convolution: Convolution, target: Target, candidate: Candidate) -> Drawn:
    if candidate.template not in ALGORITHMS:
        raise ScheduleError(f"'{candidate.template}' is no algorithm of a convolution")
    way = compute_by(convolution, ALGORITHMS[candidate.template])
    template, _ = choose_schedule(way.function, target)
    drawn = draw(way.function, target, Candidate(template, candidate.decisions))
    prepare = None if way.prepare is None else schedule(way.prepare, target)
    return replace(drawn, candidate=Candidate(candidate.template, drawn.candidate.decisions), prepare=prepare)


def draw_untuned(function: tirx.PrimFunc, target: Target) -> Drawn:
    """The kernel as the compiler makes it: what candidates are compared with."""
    convolution = read_open(function)
    if convolution is not None:
        return _draw_open(convolution, target, Candidate(name_of(choose_edge(convolution))))
    template, scheduled = choose_schedule(function, target)
    return Drawn(Candidate(template), {}, scheduled)


def list_templates(function: tirx.PrimFunc, target: Target) -> list[Drawn]:
    """The kernel as each template worth trying makes it unasked, the compiler's own first; none without choices."""
    if is_scheduled(function):
        return []
    found = []
    for template in _templates(function, target):
        try:
            drawn = draw(function, target, Candidate(template))
        except ScheduleError:
            continue  # it does not take this kernel
        if any(len(options) > 1 for options in drawn.options.values()):
            found.append(drawn)
    return found


def _templates(function: tirx.PrimFunc, target: Target) -> Sequence[str]:
    convolution = read_open(function)
    if convolution is None:
        return _TRIED.get(choose_schedule(function, target)[0], ())
    counted = name_of(choose_edge(convolution))
    return sorted(ALGORITHMS, key=lambda name: name != counted)
