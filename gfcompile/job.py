"""What is to be compiled, and what is known of it after each stage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import tvm
from torch import Tensor, nn

from gfcompile.codegen.driver import Planned
from gfcompile.codegen.program import Program
from gfcompile.codegen.scheduling import Scheduler
from gfcompile.codegen.state import StateTable
from gfcompile.codegen.tuned.tasks import Task, step_tasks
from gfcompile.frontend.differentiate import CoreProgram
from gfcompile.frontend.losses import Loss
from gfcompile.optimizers import SGD, Optimizer
from gfcompile.passes.prefix import Prefix
from gfcompile.plan import Layer, Plan
from gfcompile.settings.schema import Request
from gfcompile.step import Materialised, Refusal, Step


@dataclass(frozen=True)
class Job:
    """What is to be compiled.

    Without `calculus`, gradient filtering as published: the same gradients, to compare. Without `winograd`, every
    convolution as its plain sum: slower, with less scratch memory and a little less rounding. With `cache_prefix`, two
    more programs: what the frozen part computes of a sample, and the step on that.
    """

    module: nn.Module
    example: tuple[Tensor, ...]
    loss: Loss
    request: Request
    optimizer: Optimizer = field(default_factory=SGD)
    lr: float = 0.01
    fixed_mode: bool = False
    calculus: bool = True
    winograd: bool = True
    cache_prefix: bool = False
    skeleton: bytes | None = None  # of a model that came as ONNX: its own file without the weights


@dataclass(frozen=True)
class Surveyed:
    """The model run once: a copy of it, its layers in order of execution, its forward pass as a graph, its output."""

    job: Job
    module: nn.Module
    layers: list[Layer]
    forward: CoreProgram
    output: Any


@dataclass(frozen=True)
class Traced:
    """The model as graphs, before any pass; fields as in `Analysis`."""

    job: Job
    layers: list[Layer]
    plan: Plan
    training: Step
    forward: Step
    original: dict[str, Tensor]
    output: Any
    shared: dict[str, str]


@dataclass(frozen=True)
class Rewritten:
    """Every program that will be built, after its passes."""

    traced: Traced
    steps: dict[str, Step]
    prefix: Prefix


@dataclass(frozen=True)
class Lowered:
    """The step as kernels that no schedule has touched: the same for every target of one kind."""

    traced: Traced
    steps: dict[str, Step]
    modules: dict[str, tvm.IRModule]
    prefix: Prefix

    @property
    def job(self) -> Job:
        """What is compiled."""
        return self.traced.job


@dataclass(frozen=True)
class Scheduled:
    """Programs in the order of their calls, with the kernels' schedules for one target."""

    lowered: Lowered
    scheduler: Scheduler
    programs: dict[str, Program]


@dataclass
class Analysis:
    """Everything known before code is generated. `programs` has train, gradients and predict, in that order, and after
    them, if the job asks for a cache, features and train_features: train cut after its frozen `prefix`.

    `output` is the model's on the example: a tensor or a structure of them. `shared` maps further names of a tensor to
    the one in use. `compare` makes the training programs that the step is compared with.
    """

    job: Job
    layers: list[Layer]
    plan: Plan
    steps: dict[str, Step]
    programs: dict[str, Planned]
    scheduler: Scheduler
    state: StateTable
    prefix: Prefix
    original: dict[str, Tensor]
    output: Any
    shared: dict[str, str]
    compare: Callable[[], dict[str, Planned]] = field(repr=False)

    @cached_property
    def comparisons(self) -> dict[str, Planned]:
        """Training programs that are planned when somebody asks, and not built; both without the patch calculus,
        keeping what autograd would: `exact`, and `published`, which filters."""
        return self.compare()

    @property
    def refusals(self) -> list[Refusal]:
        """Those of every pass over the training step."""
        return self.steps["train"].refusals

    @property
    def filtered_layers(self) -> list[str]:
        """Trained layers with a patch, the refused ones left out."""
        refused = {refusal.layer for refusal in self.refusals}
        return [layer.name for layer in self.plan.trained if layer.r is not None and layer.name not in refused]

    @property
    def materialised(self) -> list[Materialised]:
        """Gradients that exist at full resolution, and why."""
        return [found for event in self.steps["train"].log for found in event.materialised]

    @property
    def saved_bytes(self) -> int:
        """Kept from forward to backward by the training program."""
        return self.programs["train"].program.saved_bytes

    @property
    def exact_saved_bytes(self) -> int:
        """The same, of the step with exact gradients."""
        return self.comparisons["exact"].program.saved_bytes

    @property
    def arena_bytes(self) -> int:
        """Enough for the largest of the programs, which share the arena."""
        return max(planned.placement.bytes for planned in self.programs.values())

    @property
    def scratch_bytes(self) -> int:
        """What each thread needs beside the arena, at most."""
        functions = [kernel for planned in self.programs.values() for kernel in planned.program.functions.values()]
        return max(self.scheduler(function).workspace.each for function in functions)

    @property
    def tasks(self) -> list[Task]:
        """All that the step leaves to trials: algorithms, where they are open, and kernels."""
        is_open = self.job.winograd and self.scheduler.target.kind == "cpu"
        programs = [planned.program for planned in self.programs.values()]
        return step_tasks(self.steps["train"] if is_open else None, programs)
