"""Where a tuning session stands: its kernels, what is gained, what is left of the budget."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from gfcompile.codegen.tuned.record import Record
from gfcompile.codegen.tuned.tasks import Task
from gfcompile.tuning.search import Search
from gfcompile.tuning.space import Drawn

_STALE = 0.5  # what is left of a kernel's claim on the budget after a batch that found nothing better


@dataclass(frozen=True)
class Budget:
    """Whichever ends first; without any, until nothing better is found."""

    trials: int | None = None
    seconds: float | None = None

    def part(self, share: float) -> Budget:
        """Of whatever there is of it."""
        trials = None if self.trials is None else int(share * self.trials)
        return Budget(trials, None if self.seconds is None else share * self.seconds)

    def without(self, spent: Status) -> Budget:
        """What is left of it."""
        trials = None if self.trials is None else max(0, self.trials - spent.trials)
        return Budget(trials, None if self.seconds is None else max(0.0, self.seconds - spent.seconds))


@dataclass
class Tuned:
    """A kernel in the session."""

    task: Task
    usual: Drawn
    search: Search
    seconds: float = 0.0  # of all its calls in a step, untuned
    best: Record | None = None
    known: bool = False  # from earlier sessions
    trials: int = 0
    failures: int = 0
    stale: int = 0  # batches since something better was found
    patience: int = 4  # such batches in a row end its search
    problem: str | None = None  # why not even the untuned kernel can be measured

    @property
    def gained(self) -> float:
        """Seconds of a step, by the best record."""
        return self.seconds * (1 - 1 / self.best.ratio) if self.best is not None and self.best.ratio else 0.0

    @property
    def template(self) -> str:
        """By which it is computed: the best one's, or as ever."""
        return self.best.template if self.best is not None else self.usual.candidate.template

    @property
    def claim(self) -> float:
        """How much of the next trials it should get: its time, less while trials gain nothing."""
        return (self.seconds - self.gained) * _STALE**self.stale


@dataclass
class Status:
    """Where a session stands; `kernel` is what it works on."""

    kernels: list[Tuned]
    budget: Budget = field(default_factory=Budget)
    started: float = field(default_factory=time.monotonic)
    ended: float | None = None
    trials: int = 0
    kernel: Tuned | None = None
    interrupted: bool = False  # no further batch begins

    @property
    def untuned_seconds(self) -> float:
        """Of all kernels, before tuning."""
        return sum(each.seconds for each in self.kernels)

    @property
    def ratio(self) -> float:
        """Of the kernels' time in a step: untuned by tuned."""
        total = self.untuned_seconds
        return total / (total - sum(each.gained for each in self.kernels)) if total else 1.0

    @property
    def seconds(self) -> float:
        """Since it began, or until it ended."""
        return (time.monotonic() if self.ended is None else self.ended) - self.started

    @property
    def is_over(self) -> bool:
        """Whether the budget is spent, or the user has had enough."""
        trials, seconds = self.budget.trials, self.budget.seconds
        spent = (trials is not None and self.trials >= trials) or (seconds is not None and self.seconds >= seconds)
        return spent or self.interrupted

    @property
    def seconds_left(self) -> float | None:
        """By the rate so far, where it is trials that end the session."""
        if self.budget.seconds is not None:
            return max(0.0, self.budget.seconds - self.seconds)
        if self.budget.trials is None or not self.trials:
            return None
        return (self.budget.trials - self.trials) * self.seconds / self.trials
