"""Tuning for a GPU that is not at hand: candidates that ptxas has seen, in the order of a static model.

Nothing here is measured. The records say so ("ranked"), and the compiler uses none of them unless it is asked to.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from tvm.s_tir.schedule import ScheduleError

from gfcompile.codegen.cuda.launches import Launch, cut, make_source
from gfcompile.codegen.cuda.nvrtc import compile_ptx
from gfcompile.codegen.cuda.ptxas import Usage, assemble, make_usages
from gfcompile.codegen.tuned.database import LEAST_RATIO, Database, Record
from gfcompile.codegen.tuned.keys import target_key, versions
from gfcompile.codegen.tuned.record import RANKED
from gfcompile.codegen.tuned.tasks import Task
from gfcompile.errors import ContractError, UserError
from gfcompile.progress import silent
from gfcompile.targets import Target
from gfcompile.tuning.gpu_model import count, estimate_seconds
from gfcompile.tuning.space import Candidate, Drawn, draw, list_templates
from gfcompile.tuning.status import Budget

NOTE = (
    "ranked, not measured: a static model of {arch} ordered what NVRTC and ptxas made of the candidates; the compiler"
    " does not use it. Measure on a board with --rpc HOST:PORT --key KEY"
)
_REFUSALS = (ContractError, RuntimeError, ValueError, TypeError, LookupError)  # ours, and the classes of TVM's
_ROUNDS = 3  # each around the best of the one before
_MOST = 48  # candidates per round
_MODEL = "static model 1"  # grows when its scores change their meaning


@dataclass
class Ranked:
    """A kernel. `run_seconds` are the model's, of one run untuned; `best` is None if nothing scores better."""

    task: Task
    templates: list[Drawn]  # the compiler's own first
    run_seconds: float
    best: Record | None = None
    candidates: int = 0
    failures: int = 0

    @property
    def seconds(self) -> float:
        """Of all its calls in a step."""
        return self.run_seconds * self.task.calls

    @property
    def score(self) -> float:
        """Of its best candidate, against the untuned kernel; 1 where none is better."""
        return self.best.score or 1.0 if self.best is not None else 1.0


@dataclass
class Ranking:
    """Where it stands; `kernel` is what it works on. Times are the model's, and compare with nothing but each other."""

    target: Target
    budget: Budget
    kernels: list[Ranked] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)
    trials: int = 0
    kernel: Ranked | None = None

    @property
    def note(self) -> str:
        """What a score of this GPU is worth."""
        return NOTE.format(arch=self.target.gpu.arch if self.target.gpu is not None else "a GPU")

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self.started

    @property
    def score(self) -> float:
        """Of all kernels' time in a step, by the model: untuned by best."""
        total = sum(each.seconds for each in self.kernels)
        return total / sum(each.seconds / each.score for each in self.kernels) if total else 1.0

    @property
    def is_over(self) -> bool:
        """Whether the budget is spent."""
        trials, seconds = self.budget.trials, self.budget.seconds
        return (trials is not None and self.trials >= trials) or (seconds is not None and self.seconds >= seconds)


def rank(
    tasks: Iterable[Task],
    target: Target,
    database: Database,
    budget: Budget,
    show: Callable[[Ranking], None] = silent,
) -> Ranking:
    """Rank candidates of each kernel, those first that take most by the model; what is known is not ranked again."""
    judge = _Judge(target)
    ranking = Ranking(target, budget)
    found = [(task, list_templates(task.function, target)) for task in tasks if task.calls]
    found = [(task, templates) for task, templates in found if templates]
    for (task, templates), usual in zip(found, judge.judge([templates[0] for _, templates in found]), strict=True):
        if usual.seconds is None:
            raise ContractError(f"'{task.name}' as the compiler makes it: {usual.failure}")
        ranking.kernels.append(Ranked(task, templates, usual.seconds))
    for kernel in sorted(ranking.kernels, key=lambda each: -each.seconds):
        if ranking.is_over:
            break
        ranking.kernel = kernel
        show(ranking)
        _rank_kernel(kernel, ranking, judge, database)
    ranking.kernel = None
    show(ranking)
    return ranking


def _rank_kernel(kernel: Ranked, ranking: Ranking, judge: _Judge, database: Database) -> None:
    """Round by round, every candidate one choice away from the best known."""
    target, task = ranking.target, kernel.task
    known = {
        Candidate(record.template, record.decisions).key: record
        for record in database.tried(task.kernel, target_key(target))
        if record.kind == RANKED and record.machine.get("model") == _MODEL
    }
    starts = kernel.templates
    usual = starts[0].candidate.key
    best: Record | None = None
    for _ in range(_ROUNDS):
        asked = [each for start in starts for each in _neighbours(start)]
        left = _MOST if ranking.budget.trials is None else min(_MOST, ranking.budget.trials - ranking.trials)
        new = [each for each in asked if each.key not in known and each.key != usual][:left]
        for record in _judge_all(new, kernel, judge, target):
            key = Candidate(record.template, record.decisions).key
            if key in known:
                continue  # another one came out the same
            database.add(record)
            known[key] = record
            ranking.trials += 1
            kernel.candidates += 1
            kernel.failures += record.failure is not None
        before, best = best, max(known.values(), key=lambda record: record.score or 0, default=None)
        if best is None or best is before or (best.score or 0) <= 1 or ranking.is_over:
            break
        starts = [draw(task.function, target, Candidate(best.template, best.decisions))]
    kernel.best = best if best is not None and (best.score or 0) >= LEAST_RATIO else None


def _neighbours(start: Drawn) -> list[Candidate]:
    """Itself, and all that differ from it in one choice."""
    found = [start.candidate]
    for name, options in start.options.items():
        found += [Candidate(start.candidate.template, {**start.candidate.decisions, name: each}) for each in options]
    return list({candidate.key: candidate for candidate in found}.values())


def _judge_all(asked: Sequence[Candidate], kernel: Ranked, judge: _Judge, target: Target) -> list[Record]:
    drawn: list[Drawn] = []
    records = []
    for candidate in asked:
        try:
            drawn.append(draw(kernel.task.function, target, candidate))
        except ScheduleError as error:
            records.append(_record(kernel, candidate, target, Judged(None, _last_words(error))))
    for each, found in zip(drawn, judge.judge(drawn), strict=True):
        records.append(_record(kernel, each.candidate, target, found))
    return records


def _record(kernel: Ranked, candidate: Candidate, target: Target, found: Judged) -> Record:
    score = kernel.run_seconds / found.seconds if found.seconds is not None and found.failure is None else None
    return Record(
        kernel=kernel.task.kernel,
        name=kernel.task.name,
        template=candidate.template,
        target=target_key(target),
        versions=versions(),
        decisions=candidate.decisions,
        kind=RANKED,
        seconds=None,
        reference_seconds=None,
        ratio=None,
        spread=None,
        failure=found.failure,
        machine={"model": _MODEL},
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        score=score,
    )


@dataclass(frozen=True)
class Judged:
    """By the model; or None, where `failure` alone says why. One that spills has both."""

    seconds: float | None
    failure: str | None = None


class _Judge:
    """Compiles candidates for a GPU, many at a time, since NVRTC takes longest to read its headers."""

    def __init__(self, target: Target) -> None:
        machine = target.machine
        if target.gpu is None or machine.peak_gflops is None or machine.bandwidth_gbs is None:
            missing = "no GPU" if target.gpu is None else "no published peak and bandwidth in its file"
            raise UserError(f"target '{target.name}': has {missing}, so nothing can be ranked; use --rpc with a board")
        self._target, self._gpu = target, target.gpu
        self._peak, self._bandwidth = machine.peak_gflops.value * 1e9, machine.bandwidth_gbs.value * 1e9

    def judge(self, drawn: Sequence[Drawn]) -> list[Judged]:
        if not drawn:
            return []
        named = {f"candidate_{number}": each for number, each in enumerate(drawn)}
        try:
            launches, counted = self._compile(named)
        except _REFUSALS as error:
            if len(drawn) == 1:
                return [Judged(None, _last_words(error))]
            half = len(drawn) // 2  # one of them spoils the source: all others still count
            return [*self.judge(drawn[:half]), *self.judge(drawn[half:])]
        return [self._score(each, launches[name], counted) for name, each in named.items()]

    def _compile(
        self, named: Mapping[str, Drawn]
    ) -> tuple[Mapping[str, list[Launch]], Mapping[str, tuple[int, int, int]]]:
        functions = {name: (each.function, True) for name, each in named.items()}
        source, launches = make_source(functions, self._target)
        with tempfile.TemporaryDirectory(prefix="gfcompile-rank-") as folder:
            ptx = Path(folder, "candidates.ptx")
            ptx.write_text(compile_ptx(source, self._gpu.arch))
            return launches, assemble(ptx, Path(folder, "candidates.cubin"), self._gpu.arch)

    def _score(self, drawn: Drawn, launches: list[Launch], counted: Mapping[str, tuple[int, int, int]]) -> Judged:
        try:
            usages = make_usages(counted, launches, self._gpu)
        except ContractError as error:
            return Judged(None, str(error))
        if not all(usage.occupancy for usage in usages):
            return Judged(None, "no multiprocessor has the registers and the shared memory for a block")
        parts = [count(part) for part in cut(drawn.function).parts]
        seconds = estimate_seconds(parts, usages, self._gpu, self._peak, self._bandwidth)
        return Judged(seconds, _refuse(usages))


def _last_words(error: Exception) -> str:
    """TVM's errors are pages of traces, with what is wrong in the last line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def _refuse(usages: Sequence[Usage]) -> str | None:
    for usage in usages:
        if usage.spill_bytes:
            return f"ptxas spills {usage.spill_bytes} bytes of registers ({usage.registers} are in use)"
    return None
