"""The parts of report.json about the machine that a step is for: estimate, tuning, the kernels of a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gfcompile.codegen.cuda.ptxas import Usage
from gfcompile.report.numbers_are import COUNTED_BY_PTXAS, ESTIMATED, MEASURED, CountedByPtxas, Estimated, Measured
from gfcompile.targets import Machine


@dataclass(frozen=True, kw_only=True)
class TargetPart:
    """The machine that the step is for; `kind` is cpu or cuda."""

    name: str
    description: str
    kind: str


@dataclass(frozen=True, kw_only=True)
class EstimateRow:
    """The kernel calls of one layer in one pass; `seconds_of_memory` are those of calls that memory limits."""

    layer: str
    pass_: Literal["forward", "backward"]
    flops: float
    bytes: int
    seconds: float
    seconds_of_memory: float


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A step on its target by the roofline, the slowest layers first, and the published figures it rests on."""

    numbers_are: Estimated = ESTIMATED
    target: str
    seconds_a_step: float
    joules_a_step: float | None
    flops: float
    bytes: int
    layers: tuple[EstimateRow, ...]
    figures: Machine


@dataclass(frozen=True, kw_only=True)
class NoEstimate:
    """Why there is none."""

    numbers_are: Estimated = ESTIMATED
    target: str
    none: str


@dataclass(frozen=True, kw_only=True)
class TunedKernel:
    """A kernel that follows a trial: `ratio` times faster than the untuned one, then and there."""

    kernel: str
    template: str
    decisions: str  # in words
    ratio: float
    machine: Mapping[str, object]
    date: str


@dataclass(frozen=True, kw_only=True)
class TunedAlgorithm:
    """A convolution that trials compute otherwise than counting would have it."""

    convolution: str
    algorithm: str
    ratio: float


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """Of the training program's `kernels`, those that were tuned; `problems` are lines of a database, unreadable."""

    numbers_are: Measured = MEASURED
    kernels: int
    tuned: tuple[TunedKernel, ...]
    algorithms: tuple[TunedAlgorithm, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class GpuPart:
    """What the kernels take of a GPU."""

    numbers_are: CountedByPtxas = COUNTED_BY_PTXAS
    arch: str
    kernels: tuple[Usage, ...]
