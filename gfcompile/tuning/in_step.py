"""What is faster by itself, looked at inside its step, where it shares caches and memory with all the others."""

from __future__ import annotations

import ctypes
import tempfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import Tensor

from gfcompile.codegen.artifact import LIBRARY, build
from gfcompile.compiler import Analysis, Job, Lowered, place
from gfcompile.runtime.step import Step
from gfcompile.targets import Target
from gfcompile.tuning.database import NOTHING_KNOWN, Database, Databases
from gfcompile.tuning.record import Record

_WARM_UP, _STEPS = 3, 21
_ROUNDS = 3  # what takes the place of a slower one is looked at too


class TimedStep:
    """A step in the folder `out` whose driver has a clock around every call."""

    def __init__(self, analysis: Analysis, out: Path) -> None:
        folder = build(analysis, out, lambda _: None, {}, timed=True)
        self.program = analysis.programs["train"].program
        self.tuned: dict[str, Record] = {}
        for name, function in self.program.functions.items():
            record = analysis.scheduler(function).tuned
            if record is not None:
                self.tuned[name] = record
        self._step = Step(folder)
        library = ctypes.CDLL(str(folder / LIBRARY))
        self._clock = (ctypes.c_int64 * len(self.program.calls)).in_dll(library, "gf_train_nanoseconds")

    def train(self, x: tuple[np.ndarray, ...], y: np.ndarray) -> np.ndarray:
        """Seconds of each call of one step, in order."""
        before = np.array(self._clock)
        self._step.train(x if len(x) > 1 else x[0], y)
        return (np.array(self._clock) - before) / 1e9

    def of_kernels(self, seconds: np.ndarray) -> dict[str, float]:
        """The calls' times added up by kernel."""
        found: dict[str, float] = {}
        for call, spent in zip(self.program.calls, seconds, strict=True):
            found[call.kernel] = found.get(call.kernel, 0.0) + float(spent)
        return found

    def close(self) -> None:
        self._step.close()


def compare_in_step(lowered: Lowered, target: Target, known: Databases) -> dict[str, tuple[Record, float]]:
    """Each tuned kernel's record, and how many times faster than untuned it is in the step: the two take turns."""
    with tempfile.TemporaryDirectory(prefix="gfcompile-step-") as folder:
        tuned = TimedStep(place(lowered, target, tuning=known), Path(folder) / "tuned_step")
        if not tuned.tuned:
            tuned.close()
            return {}
        untuned = TimedStep(place(lowered, target, tuning=NOTHING_KNOWN), Path(folder) / "untuned_step")
        x, y = _batch(lowered.job, lowered.traced.output)
        turns: list[dict[str, float]] = []
        for _ in range(_WARM_UP + _STEPS):
            ours, theirs = tuned.of_kernels(tuned.train(x, y)), untuned.of_kernels(untuned.train(x, y))
            turns.append({name: theirs[name] / ours[name] for name in tuned.tuned})
        for step in (tuned, untuned):
            step.close()
    ratios = {name: median(turn[name] for turn in turns[_WARM_UP:]) for name in tuned.tuned}
    return {name: (record, ratios[name]) for name, record in tuned.tuned.items()}


def reject_slower(lowered: Lowered, target: Target, database: Database) -> list[tuple[str, float]]:
    """Take back what is slower in its step than the untuned kernel; returns these kernels with their ratios.

    A kernel that was slower in every round stays untuned: what is left of its candidates nobody has looked at.
    """
    rejected: list[tuple[str, float]] = []
    for turn in range(1, _ROUNDS + 1):
        found = compare_in_step(lowered, target, Databases((database,)))
        slower = {name: each for name, each in found.items() if each[1] < 1}
        for name, (record, ratio) in slower.items():
            _take_back(database, record, ratio)
            rejected.append((name, ratio))
            while turn == _ROUNDS and (left := database.best(record.kernel, record.target)) is not None:
                _take_back(database, left, ratio)
        if not slower:
            break
    return rejected


def _take_back(database: Database, record: Record, ratio: float) -> None:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    database.add(replace(record, ratio=ratio, spread=None, failure=f"slower in its step: {ratio:.2f}x", date=now))


def _batch(job: Job, output: Tensor) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    random = torch.Generator().manual_seed(0)
    x = [torch.randn(each.shape, generator=random) if each.is_floating_point() else each for each in job.example]
    return tuple(each.numpy() for each in x), job.loss.target_like(output).numpy()
