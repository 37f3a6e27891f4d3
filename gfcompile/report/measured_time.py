"""Kernel times that a tuning database measured on the target, added up over a step."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gfcompile.job import Analysis


@dataclass(frozen=True)
class MeasuredTime:
    """Seconds of those calls of the training program whose kernels were measured, `known` of `calls`."""

    seconds: float
    known: int
    calls: int

    @property
    def is_complete(self) -> bool:
        """Whether every call has a measured time."""
        return self.known == self.calls


def measured_time(analysis: Analysis) -> MeasuredTime:
    """A tuned kernel takes what its trial took; an untuned one what it took as the reference of trials."""
    from gfcompile.codegen.tuned.keys import kernel_hash, target_key
    from gfcompile.codegen.tuned.record import MEASURED

    program, scheduler = analysis.programs["train"].program, analysis.scheduler
    key = target_key(scheduler.target)
    seconds: dict[str, float] = {}
    for name, function in program.functions.items():
        tuned = scheduler(function).tuned
        if tuned is not None and tuned.seconds is not None:
            seconds[name] = tuned.seconds
            continue
        trials = [each for layer in scheduler.tuning.layers for each in layer.tried(kernel_hash(function), key)]
        times = [each.reference_seconds for each in trials if each.kind == MEASURED and each.reference_seconds]
        if times:
            seconds[name] = statistics.median(times)
    known = [seconds[call.kernel] for call in program.calls if call.kernel in seconds]
    return MeasuredTime(sum(known), len(known), len(program.calls))
