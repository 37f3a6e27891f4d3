"""What a plan takes once compiled: traced, lowered and placed as the compiler does it, no code generated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gfcompile.budget.choices import as_request
from gfcompile.codegen.tuned.algorithms import choose_by
from gfcompile.codegen.tuned.database import NOTHING_KNOWN, Databases
from gfcompile.job import Analysis, Job
from gfcompile.progress import Progress, silent
from gfcompile.report.measured_time import MeasuredTime, measured_time
from gfcompile.report.memory import weight_and_optimizer_bytes
from gfcompile.settings.planning import Choice
from gfcompile.stages import lower_job, place
from gfcompile.targets import Target


@dataclass(frozen=True)
class Placed:
    """`arena_bytes` is what the library's `gf_step_arena_bytes()` says, `predict_bytes` the part of it that the forward
    pass takes. Beside the arena lie weights and optimizer state, and scratch for each thread."""

    arena_bytes: int
    saved_bytes: int
    predict_bytes: int
    weight_bytes: int
    optimizer_bytes: int
    thread_bytes: int
    time: MeasuredTime

    @classmethod
    def of(cls, analysis: Analysis) -> Placed:
        """Read off a step whose programs are placed."""
        predict = analysis.programs["predict"].placement.bytes
        weights, optimizer = weight_and_optimizer_bytes(analysis)
        return cls(
            analysis.arena_bytes,
            analysis.saved_bytes,
            predict,
            weights,
            optimizer,
            analysis.scratch_bytes,
            measured_time(analysis),
        )


Key = frozenset[tuple[str, Choice]]


def key_of(choices: Mapping[str, Choice]) -> Key:
    """What is trained, and how: all that a plan is."""
    return frozenset((layer, choice) for layer, choice in choices.items() if choice.trains)


class Arenas:
    """Places plans of one job for one target, each once."""

    def __init__(
        self,
        job: Job,
        target: Target,
        tuning: Databases = NOTHING_KNOWN,
        progress: Progress = silent,
    ) -> None:
        self.job, self.target, self.tuning, self.progress = job, target, tuning, progress
        self.known: dict[Key, Placed] = {}

    def __call__(self, choices: Mapping[str, Choice]) -> Placed:
        key = key_of(choices)
        if key not in self.known:
            self.progress(f"placing plan {len(self.known) + 1}")
            job = replace(self.job, request=as_request(choices, self.job.request))
            choose = choose_by(self.tuning, self.target)
            lowered = lower_job(job, self.target.kind, algorithms=choose, comparisons=False)
            self.known[key] = Placed.of(place(lowered, self.target, tuning=self.tuning))
        return self.known[key]
