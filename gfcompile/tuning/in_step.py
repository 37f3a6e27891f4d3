"""What is faster by itself, looked at inside its step, where it shares caches and memory with all the others."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import Tensor

from gfcompile.artifact.manifest import LIBRARY
from gfcompile.codegen.tuned.database import NOTHING_KNOWN, Database, Databases
from gfcompile.codegen.tuned.keys import target_key
from gfcompile.codegen.tuned.record import Record
from gfcompile.compiler import write_step
from gfcompile.geometry.winograd import Convolution
from gfcompile.graph.open_convolutions import find_open
from gfcompile.job import Analysis, Job, Lowered
from gfcompile.runtime.step import Step
from gfcompile.stages import place
from gfcompile.targets import Target

_WARM_UP, _STEPS = 3, 41
_ROUNDS = 3  # what takes the place of a slower one is looked at too


class TimedStep:
    """A step in the folder `out` whose driver has a clock around every call."""

    def __init__(self, analysis: Analysis, out: Path) -> None:
        folder = write_step(analysis, out, timed=True)
        self.program, self._trained = analysis.programs["train"].program, analysis.steps["train"]
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

    def of_weights(self, seconds: np.ndarray) -> dict[str, float]:
        """The forward pass's times added up by the parameter that a call reads, or reads what was made of."""
        found: dict[str, float] = {}
        forward = self.program.calls[: self.program.loss_call() + 1]
        for call, spent in zip(forward, seconds, strict=False):
            values = [self.program.buffers[buffer].value for buffer in call.inputs]
            for name in {self._trained.origin(value) for value in values if value is not None} - {None}:
                found[str(name)] = found.get(str(name), 0.0) + float(spent)
        return found

    def close(self) -> None:
        """Unload the step."""
        self._step.close()


@dataclass(frozen=True)
class Ratio:
    """How many times faster than untuned, in the step: the median of all turns, and the range it is surely in.

    The range is that of order statistics, a third of the turns from each end: with 41 turns, right in 19 of 20 cases.
    """

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, turns: Sequence[float]) -> Ratio:
        """From the ratio of each turn."""
        ranked, off = sorted(turns), len(turns) // 3
        return cls(median(ranked), ranked[off], ranked[-1 - off])


def compare_in_step(lowered: Lowered, target: Target, known: Databases) -> dict[str, tuple[Record, Ratio]]:
    """Each tuned kernel's record, and how it does: the tuned step and the untuned one take turns."""
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
    ratios = {name: Ratio.of([turn[name] for turn in turns[_WARM_UP:]]) for name in tuned.tuned}
    return {name: (record, ratios[name]) for name, record in tuned.tuned.items()}


def reject_slower(lowered: Lowered, target: Target, database: Database) -> list[tuple[str, float]]:
    """Take back what is not surely faster in its step than the untuned kernel; returns these with their ratios.

    A kernel for which that was so in every round stays untuned: what is left of its candidates nobody has looked at.
    """
    rejected: list[tuple[str, float]] = []
    for turn in range(1, _ROUNDS + 1):
        found = compare_in_step(lowered, target, Databases((database,)))
        slower = {name: each for name, each in found.items() if each[1].low < 1}
        for name, (record, ratio) in slower.items():
            _take_back(database, record, ratio.value)
            rejected.append((name, ratio.value))
            while turn == _ROUNDS and (left := database.best(record.kernel, record.target)) is not None:
                _take_back(database, left, ratio.value)
        if not slower:
            break
    return rejected


def reject_slower_algorithms(
    counted: Lowered, decided: Lowered, target: Target, database: Database
) -> list[tuple[str, float]]:
    """Take back what is not surely faster in its step than the algorithm that counting chose, tuned as well."""
    ways = {site.convolution: site.edge for site in find_open(counted.steps["train"])}
    layers: dict[Convolution, list[str]] = {}
    values = dict(zip(decided.steps["train"].placeholders(), decided.steps["train"].inputs, strict=True))
    for site in find_open(decided.steps["train"]):
        name = decided.steps["train"].origin(values[site.weights]) if site.weights in values else None
        if name is not None and ways.get(site.convolution, site.edge) != site.edge:
            layers.setdefault(site.convolution, []).append(name)
    turns = _race_by_weights(counted, decided, target, Databases((database,)))
    rejected = []
    for convolution, names in layers.items():
        ratio = Ratio.of(
            [sum(theirs[name] for name in names) / sum(ours[name] for name in names) for ours, theirs in turns]
        )
        while ratio.low < 1 and (record := database.best(convolution.key, target_key(target))) is not None:
            _take_back(database, record, ratio.value)
        if ratio.low < 1:
            rejected.append((convolution.key, ratio.value))
    return rejected


def _race_by_weights(
    counted: Lowered, decided: Lowered, target: Target, known: Databases
) -> list[tuple[dict[str, float], dict[str, float]]]:
    """Of each turn the times of the decided step and of the counted one."""
    with tempfile.TemporaryDirectory(prefix="gfcompile-step-") as folder:
        ours = TimedStep(place(decided, target, tuning=known), Path(folder) / "decided_step")
        theirs = TimedStep(place(counted, target, tuning=known), Path(folder) / "counted_step")
        x, y = _batch(counted.job, counted.traced.output)
        turns = [
            (ours.of_weights(ours.train(x, y)), theirs.of_weights(theirs.train(x, y))) for _ in range(_WARM_UP + _STEPS)
        ]
        for step in (ours, theirs):
            step.close()
    return turns[_WARM_UP:]


def _take_back(database: Database, record: Record, ratio: float) -> None:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    failure = f"not surely faster in its step: {ratio:.2f}x"
    database.add(replace(record, ratio=ratio, spread=None, failure=failure, date=now))


def _batch(job: Job, output: Tensor) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    random = torch.Generator().manual_seed(0)
    x = [torch.randn(each.shape, generator=random) if each.is_floating_point() else each for each in job.example]
    return tuple(each.numpy() for each in x), job.loss.target_like(output).numpy()
