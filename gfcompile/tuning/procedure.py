"""Tuning a step from beginning to end: first its convolutions' algorithms, then its kernels, then a look inside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gfcompile.codegen.tuned.algorithms import choose_by
from gfcompile.codegen.tuned.database import Database, Databases
from gfcompile.codegen.tuned.record import EMULATED
from gfcompile.codegen.tuned.tasks import Task
from gfcompile.graph.open_convolutions import find_open
from gfcompile.job import Lowered
from gfcompile.progress import Progress, silent
from gfcompile.stages import lower_job, place
from gfcompile.targets import Target
from gfcompile.tuning.in_step import reject_slower, reject_slower_algorithms
from gfcompile.tuning.session import Session
from gfcompile.tuning.status import Budget, Status
from gfcompile.tuning.trial import Runner

_FOR_ALGORITHMS = 0.25  # of the budget, at most


@dataclass
class Procedure:
    """`run` may be interrupted at any point: what was measured is in the database, and `status` says how far it came.

    `lowered` is the step, where it is known: with an artifact alone, its kernels are tuned as they are, and another
    algorithm is followed when the model is compiled next.
    """

    tasks: Sequence[Task]
    target: Target
    database: Database
    runner: Runner
    workers: int
    lowered: Lowered | None = None
    runs_here: bool = True
    show: Callable[[Status], None] = silent
    progress: Progress = silent
    rejected: list[tuple[str, float]] = field(default_factory=list)  # with their ratio in the step
    algorithms: Session = field(init=False)
    kernels: Session = field(init=False)
    interrupted: bool = False

    def __post_init__(self) -> None:
        self.algorithms, self.kernels = self._session(self.tasks, is_open=True), self._session(self.tasks)

    @property
    def status(self) -> Status:
        """Of the kernels."""
        return self.kernels.status

    def interrupt(self) -> None:
        """No further batch begins."""
        self.interrupted = self.algorithms.status.interrupted = self.kernels.status.interrupted = True

    def run(self, budget: Budget) -> None:
        """Tune until the budget is spent."""
        counted = self.lowered
        share = budget.part(_FOR_ALGORITHMS)
        if self.algorithms.status.kernels and share.trials != 0:
            self.algorithms.run(share)
            if self.interrupted:
                return
            budget = budget.without(self.algorithms.status)
            self._follow_algorithms()
            self.kernels.learn(self.algorithms)
        self.kernels.run(budget)
        if self.lowered is None or not self.runs_here or self.runner.kind == EMULATED or self.interrupted:
            return
        self.progress("looking at what is faster inside the step")
        if counted is not None and counted is not self.lowered:
            self.rejected += reject_slower_algorithms(counted, self.lowered, self.target, self.database)
            self._follow_algorithms()
        self.rejected += reject_slower(self.lowered, self.target, self.database)
        for session in (self.algorithms, self.kernels):
            session.choose_again()

    def _follow_algorithms(self) -> None:
        """Lower the step anew where it should compute a convolution otherwise than it does."""
        if self.lowered is None:
            return
        choose = choose_by(Databases((self.database,)), self.target)
        sites = find_open(self.lowered.steps["train"])
        if all(choose(site.convolution) == site.edge for site in sites):
            return
        job, kind = self.lowered.job, self.target.kind
        self.lowered = lower_job(job, kind, progress=self.progress, algorithms=choose)
        self.kernels = self._session(place(self.lowered, self.target).tasks)

    def _session(self, tasks: Sequence[Task], is_open: bool = False) -> Session:
        tasks = [task for task in tasks if task.is_open == is_open]
        return Session(tasks, self.target, self.database, self.runner, self.workers, self.show)
