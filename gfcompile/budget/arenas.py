"""What a plan takes once compiled: lowered and placed as the compiler does it, no code generated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gfcompile.budget.choices import as_request
from gfcompile.budget.traces import Traces
from gfcompile.codegen.tuned.algorithms import choose_by
from gfcompile.codegen.tuned.database import NOTHING_KNOWN, Databases
from gfcompile.job import Analysis, Traced
from gfcompile.report.measured_time import MeasuredTime, measured_time
from gfcompile.report.memory import weight_and_optimizer_bytes
from gfcompile.settings.planning import Choice
from gfcompile.settings.schema import Request
from gfcompile.stages import give_places, lower, make_scheduler, rewrite, schedule
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
    """Places plans of one job for one target, each once; a kernel that several have is scheduled once."""

    def __init__(self, traces: Traces, target: Target, tuning: Databases = NOTHING_KNOWN) -> None:
        self.traces, self.target = traces, target
        self.known: dict[Key, Placed] = {}
        self._confirmed: set[Key] = set()
        self._algorithms = choose_by(tuning, target)
        self._scheduler = make_scheduler(target, tuning)

    def __call__(self, choices: Mapping[str, Choice]) -> Placed:
        key = key_of(choices)
        if key not in self.known:
            self.known[key] = self._place(self.traces(self._request(choices)))
        return self.known[key]

    def is_confirmed(self, choices: Mapping[str, Choice]) -> bool:
        """Whether a trace of the plan alone is known to give what its cut one gives."""
        is_checked = self._request(choices) == self.traces.checked
        return is_checked or not self.traces.are_cut or key_of(choices) in self._confirmed

    def confirm(self, choices: Mapping[str, Choice]) -> bool:
        """Whether a plan that was placed takes the same from a trace of its own, of which it is compiled.

        If not, the model looks at what is trained: nothing is cut any more, and what is known of other plans forgotten.
        """
        key = key_of(choices)
        own = self._place(self.traces.own(self._request(choices)))
        if own.arena_bytes == self.known[key].arena_bytes:
            self._confirmed.add(key)
            return True
        self.traces.are_cut = False
        self.known.clear()
        self.known[key] = own
        return False

    def _request(self, choices: Mapping[str, Choice]) -> Request:
        return as_request(choices, self.traces.surveyed.job.request)

    def _place(self, traced: Traced) -> Placed:
        rewritten = rewrite(traced, self.target.kind, algorithms=self._algorithms)
        scheduled = schedule(lower(rewritten), self._scheduler)
        return Placed.of(give_places(scheduled))
