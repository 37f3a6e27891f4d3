"""A tuning session: trials in batches, the budget spent where it pays, every result kept as soon as it is there."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from statistics import median, quantiles

import tvm
from tvm.s_tir.schedule import ScheduleError

from gfcompile.codegen.schedules.choices import Option
from gfcompile.codegen.tuned.database import Database, Record, is_faster, sure_ratio
from gfcompile.codegen.tuned.keys import target_key, versions
from gfcompile.codegen.tuned.tasks import Task
from gfcompile.errors import UserError
from gfcompile.progress import silent
from gfcompile.targets import Target
from gfcompile.tuning.builders import BuildPool, Built, Make
from gfcompile.tuning.machine import COOL, HOT
from gfcompile.tuning.search import PARENTS, Search
from gfcompile.tuning.space import Candidate, draw, list_templates
from gfcompile.tuning.status import Budget, Status, Tuned
from gfcompile.tuning.trial import Measurement, Runner, TrialFailed

MOST_ERROR = 1e-4  # of the largest value: sums in another order; a wrong kernel is far beyond
_BATCH = 8
_TIMEOUT = 20.0  # seconds, for kernels that take milliseconds
_CONFIRMING = 5  # further runs of a trial that looks best, before it is believed
_OPEN_PATIENCE = 2  # of an open convolution: which algorithm shows early, and the step's own kernels follow
_PAUSE, _MOST_PAUSE = 2.0, 120.0  # seconds, while the machine cools down
_MUCH = 1.2  # a ratio that is news to kernels of other shapes
_LEAST_SHARE = 0.002  # of the kernels' time: what takes less is left alone


class Session:
    """Tunes the kernels of one step for one machine. `run` may be interrupted: what was measured is in the database."""

    def __init__(
        self,
        tasks: Iterable[Task],
        target: Target,
        database: Database,
        runner: Runner,
        workers: int,
        show: Callable[[Status], None] = silent,
        make: Make = draw,
    ) -> None:
        self._target, self._database, self._runner, self._show = target, database, runner, show
        self._workers, self._make = workers, make
        self._key, self._versions = target_key(target), versions()
        self._kernels: list[Tuned] = []
        for task in tasks:
            templates = list_templates(task.function, target) if task.calls else []
            if templates:
                kernel = Tuned(task, templates[0], Search(templates, seed=len(self._kernels)))
                if task.is_open:
                    kernel.patience = _OPEN_PATIENCE
                self._recall(kernel)
                self._kernels.append(kernel)
        self.status = Status(self._kernels)

    def run(self, budget: Budget) -> None:
        """Spend the budget on trials; `status` says how far it came."""
        status = self.status
        status.budget, status.started, status.ended = budget, time.monotonic(), None
        try:
            self._spend(status)
        finally:
            status.ended = time.monotonic()
        status.kernel = None
        self._show(status)

    def _spend(self, status: Status) -> None:
        with (
            tempfile.TemporaryDirectory(prefix="gfcompile-tune-") as folder,
            BuildPool(self._target, self._workers, Path(folder), self._runner.form, self._make) as pool,
        ):
            self._measure_untuned(pool, status)
            total = status.untuned_seconds
            while not status.is_over:
                open_ = [each for each in self._kernels if each.stale < each.patience]
                open_ = [each for each in open_ if each.seconds > _LEAST_SHARE * total]
                if not open_:
                    break
                status.kernel = max(open_, key=lambda each: each.claim)
                self._show(status)
                self._cool_down()
                self._try_batch(pool, status, status.kernel)

    def learn(self, other: Session) -> None:
        """Begin with what another session found best for kernels with the same choices."""
        for found in other.status.kernels:
            if found.best is None or found.template != found.usual.candidate.template:
                continue
            for kernel in self._kernels:
                if kernel.usual.options == found.usual.options:
                    kernel.search.hint(Candidate(kernel.usual.candidate.template, found.best.decisions))

    def choose_again(self) -> None:
        """After records were taken back."""
        for kernel in self._kernels:
            self._choose_best(kernel)

    def _cool_down(self) -> None:
        """A hot machine lowers its clock, and what ran last would look slow."""
        if self._temperature() >= HOT:
            ends = time.monotonic() + _MOST_PAUSE
            while self._temperature() > COOL and time.monotonic() < ends:
                time.sleep(_PAUSE)

    def _temperature(self) -> int:
        return int(self._runner.read_machine().get("millicelsius", 0))

    def _recall(self, kernel: Tuned) -> None:
        """What earlier sessions found of it."""
        known = self._database.tried(kernel.task.kernel, self._key)
        known = [record for record in known if record.kind == self._runner.kind]
        kernel.known = bool(known)
        for rank, record in enumerate(sorted(known, key=lambda record: -_worth(record))):
            candidate = Candidate(record.template, record.decisions)
            options = self._options(kernel, candidate) if rank < PARENTS and _worth(record) else {}
            kernel.search.tell(candidate, options, _worth(record) or None)
        taken = [record.reference_seconds for record in known if record.reference_seconds is not None]
        if taken:
            kernel.seconds = median(taken) * kernel.task.calls
        self._choose_best(kernel)

    def _options(self, kernel: Tuned, candidate: Candidate) -> Mapping[str, tuple[Option, ...]]:
        """Empty where it comes out otherwise than it was kept, so that nothing can be said of its neighbours."""
        try:
            drawn = draw(kernel.task.function, self._target, candidate)
        except ScheduleError:
            return {}
        return drawn.options if drawn.candidate.key == candidate.key else {}

    def _choose_best(self, kernel: Tuned) -> None:
        emulated = self._runner.kind == "emulated"
        kernel.best = self._database.best(kernel.task.kernel, self._key, allow_emulated=emulated)

    def _measure_untuned(self, pool: BuildPool, status: Status) -> None:
        """Each kernel against itself: how long it takes, and whether a trial of it works at all."""
        for kernel in [each for each in self._kernels if not each.seconds]:
            status.kernel = kernel
            self._show(status)
            ((candidate, built),) = self._build(pool, kernel, [kernel.usual.candidate])
            record = self._run(kernel, candidate, built)
            if record.failure is None and record.reference_seconds is not None:
                kernel.seconds = record.reference_seconds * kernel.task.calls
            else:
                kernel.stale, kernel.problem = kernel.patience, record.failure  # it stays as it is
        problems = [f"{kernel.task.name}: {kernel.problem}" for kernel in self._kernels if kernel.problem is not None]
        if problems and not status.untuned_seconds:
            raise UserError(f"tune: no kernel can be measured, even untuned; of the first: {problems[0]}")

    def _try_batch(self, pool: BuildPool, status: Status, kernel: Tuned) -> None:
        asked = _BATCH if status.budget.trials is None else min(_BATCH, status.budget.trials - status.trials)
        candidates = kernel.search.ask(asked)
        before = kernel.best
        records = self._try(pool, kernel, candidates)
        status.trials += len(records)
        kernel.trials += len(records)
        kernel.failures += sum(record.failure is not None for record in records)
        self._choose_best(kernel)
        kernel.stale = kernel.stale + 1 if kernel.best == before else 0
        if kernel.best is not None and kernel.best != before:
            self._hint(kernel, kernel.best)
        if not candidates:
            kernel.stale = kernel.patience  # all of its space is known

    def _hint(self, found: Tuned, best: Record) -> None:
        """What is best for a kernel is tried next on those that are alike: the same choices, another epilogue, say.

        What gains much is tried on all kernels of its template, which take of it what is an option there.
        """
        candidate = Candidate(best.template, best.decisions)
        for kernel in self._kernels:
            is_alike = kernel.usual.options == found.usual.options
            is_near = sure_ratio(best) >= _MUCH and kernel.usual.candidate.template == best.template
            if kernel is not found and (is_alike or is_near) and kernel.search.hint(candidate):
                kernel.stale = 0

    def _try(self, pool: BuildPool, kernel: Tuned, candidates: Sequence[Candidate]) -> list[Record]:
        """Build all, then run them while nothing else runs here; not those that came out as one before."""
        built = self._build(pool, kernel, candidates)
        new: dict[object, tuple[Candidate, Built | TrialFailed]] = {}
        for candidate, result in built:
            if not kernel.search.knows(candidate.key) and candidate.key != kernel.usual.candidate.key:
                new.setdefault(candidate.key, (candidate, result))
        with ThreadPoolExecutor(self._runner.boards()) as boards:
            records = list(boards.map(lambda each: self._measure(kernel, *each), new.values()))
        for _, result in built:
            if isinstance(result, Built):
                shutil.rmtree(result.path.parent)
        return records

    def _build(
        self, pool: BuildPool, kernel: Tuned, candidates: Sequence[Candidate]
    ) -> list[tuple[Candidate, Built | TrialFailed]]:
        """Trials of the candidates as they came out."""
        function = str(tvm.ir.save_json(kernel.task.function))
        for candidate in candidates:
            pool.submit(candidate, function, candidate)
        return [(result.candidate if isinstance(result, Built) else asked, result) for asked, result in pool]

    def _measure(self, kernel: Tuned, candidate: Candidate, built: Built | TrialFailed) -> Record:
        options = built.options if isinstance(built, Built) else {}
        record = self._run(kernel, candidate, built)
        if is_faster(record) and (kernel.best is None or sure_ratio(record) > sure_ratio(kernel.best)):
            record = self._run(kernel, candidate, built, _CONFIRMING)
        self._database.add(record)
        kernel.search.tell(candidate, options, _worth(record) or None)
        return record

    def _run(self, kernel: Tuned, candidate: Candidate, built: Built | TrialFailed, runs: int = 1) -> Record:
        try:
            if isinstance(built, TrialFailed):
                raise built
            found = [self._runner.run(built.path, _TIMEOUT) for _ in range(runs)]
            return self._record(kernel, candidate, found)
        except TrialFailed as failure:
            return self._record(kernel, candidate, [], str(failure))

    def _record(
        self, kernel: Tuned, candidate: Candidate, found: Sequence[Measurement], failure: str | None = None
    ) -> Record:
        seconds = [each for measurement in found for each in measurement.seconds]
        reference = [each for measurement in found for each in measurement.reference]
        ratio, spread = compare(found) if found else (None, None)
        wrong = [each.error for each in found if not each.error <= MOST_ERROR]  # so that what is no number is wrong
        if wrong:
            failure = f"wrong result: it differs by {wrong[0]:.1e} of the largest value from the untuned kernel"
        return Record(
            kernel=kernel.task.kernel,
            name=kernel.task.name,
            template=candidate.template,
            target=self._key,
            versions=self._versions,
            decisions=candidate.decisions,
            kind=self._runner.kind,
            seconds=median(seconds) if seconds else None,
            reference_seconds=median(reference) if reference else None,
            ratio=ratio,
            spread=spread,
            failure=failure,
            machine=self._runner.read_machine(),
            date=datetime.now(UTC).isoformat(timespec="seconds"),
        )


def _worth(record: Record) -> float:
    """Its ratio; 0 where it does not count."""
    return record.ratio if record.ratio is not None and record.failure is None else 0.0


def compare(found: Sequence[Measurement]) -> tuple[float, float]:
    """(ratio, spread): how many times faster the candidate is than the untuned kernel, and how far that may be off.

    Turns of one run share their pages of memory, which alone can make several percent. So runs that confirm count as
    one value each; of a single run, the middle half of its turns.
    """
    runs = [[untuned / tuned for untuned, tuned in zip(each.reference, each.seconds, strict=True)] for each in found]
    if len(runs) > 1:
        ratios = [median(turns) for turns in runs]
        return median(ratios), (max(ratios) - min(ratios)) / 2
    (turns,) = runs
    if len(turns) == 1:
        return turns[0], turns[0]
    low, _, high = quantiles(turns, n=4)
    return median(turns), (high - low) / 2
