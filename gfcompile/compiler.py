"""The compiler as two steps: `analyse` knows everything about the step to be, `build` generates and links its code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from gfcompile import pipeline
from gfcompile.codegen.arena import plan_arena
from gfcompile.codegen.driver import Planned
from gfcompile.codegen.lower import lower
from gfcompile.codegen.program import make_program
from gfcompile.codegen.scheduling import Scheduler
from gfcompile.codegen.state import StateTable
from gfcompile.errors import UserError
from gfcompile.frontend.losses import Loss
from gfcompile.frontend.survey import survey
from gfcompile.frontend.trace import forward_step, run_once, trace_forward, trace_training, working_copy
from gfcompile.optimizers import SGD
from gfcompile.plan import Layer, Plan, Request, make_plan
from gfcompile.step import Materialised, Refusal, Step
from gfcompile.targets import Target, find_target

Observer = Callable[[str, int, str, Step], None]
Progress = Callable[[str], None]
COMPARISONS = ("exact", "published")


@dataclass(frozen=True)
class Job:
    """What is to be compiled. Without `calculus`, gradient filtering as published: the same gradients, to compare."""

    module: nn.Module
    example: Tensor
    loss: Loss
    request: Request
    optimizer: SGD = field(default_factory=SGD)
    lr: float = 0.01
    fixed_mode: bool = False
    calculus: bool = True


@dataclass
class Analysis:
    """Everything known before code is generated. `programs` has train, gradients and predict, in that order.

    `comparisons` are training programs that are planned and not built, both without the patch calculus, keeping what
    autograd would: `exact`, and `published`, which filters.
    """

    job: Job
    layers: list[Layer]
    plan: Plan
    steps: dict[str, Step]
    programs: dict[str, Planned]
    scheduler: Scheduler
    state: StateTable
    comparisons: dict[str, Planned]
    original: dict[str, Tensor]
    output_shape: tuple[int, ...]

    @property
    def refusals(self) -> list[Refusal]:
        return self.steps["train"].refusals

    @property
    def filtered_layers(self) -> list[str]:
        refused = {refusal.layer for refusal in self.refusals}
        return [layer.name for layer in self.plan.trained if layer.r is not None and layer.name not in refused]

    @property
    def materialised(self) -> list[Materialised]:
        """Gradients that exist at full resolution, and why."""
        return [found for event in self.steps["train"].log for found in event.materialised]

    @property
    def saved_bytes(self) -> int:
        return self.programs["train"].program.saved_bytes

    @property
    def exact_saved_bytes(self) -> int:
        return self.comparisons["exact"].program.saved_bytes

    @property
    def arena_bytes(self) -> int:
        return max(planned.placement.bytes for planned in self.programs.values())

    @property
    def scratch_bytes(self) -> int:
        """What each thread needs beside the arena, at most."""
        functions = [kernel for planned in self.programs.values() for kernel in planned.program.functions.values()]
        return max(self.scheduler(function).workspace.each for function in functions)


def make_survey(job: Job) -> list[Layer]:
    """The model's layers in order of execution."""
    module = working_copy(job.module)
    run_once(module, job.example)
    return survey(trace_forward(module, job.example), _parameter_names(module))


def analyse(
    job: Job,
    observe: Observer | None = None,
    progress: Progress = lambda _: None,
    target: Target | None = None,
) -> Analysis:
    """Trace, plan, rewrite, lower, schedule and place in memory; generates no code. The target is native by default."""
    if job.fixed_mode and job.request.batchnorm == "train":
        raise UserError(
            "--batchnorm train: a .pt2 file has its batch norms fixed; export it from the module again, or use eval"
        )
    module = working_copy(job.module)
    progress("tracing the forward pass")
    output = run_once(module, job.example)
    forward = trace_forward(module, job.example)
    layers = survey(forward, _parameter_names(module))
    plan = make_plan(layers, job.request)
    _check_sharing(module, plan)
    original = {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}
    progress("tracing the backward pass")
    traced = trace_training(module, job.example, job.loss.target_like(output), job.loss, plan)
    exact = replace(plan, trained=tuple(replace(layer, r=None) for layer in plan.trained), refused=())
    variants = {
        "train": (traced, plan, pipeline.training_passes(job.optimizer, job.calculus)),
        "gradients": (traced, plan, pipeline.gradient_passes(job.calculus)),
        "exact": (traced, exact, pipeline.training_passes(job.optimizer, calculus=False)),
        "published": (traced, plan, pipeline.training_passes(job.optimizer, calculus=False)),
        "predict": (forward_step(forward, plan, traced.updated_buffers), plan, pipeline.prediction_passes()),
    }
    scheduler = Scheduler(target or find_target("native"))
    steps, programs, state = {}, {}, StateTable()
    for name, (source, its_plan, passes) in variants.items():
        progress(f"rewriting and lowering: {name}")
        steps[name] = step = pipeline.run(_duplicate(source, its_plan), passes, _named(observe, name))
        program = make_program(name, lower(step), step, scheduler)
        programs[name] = Planned(program, plan_arena(program))
        if name not in COMPARISONS:
            state.add(name, step)
    comparisons = {name: programs.pop(name) for name in COMPARISONS}
    return Analysis(job, layers, plan, steps, programs, scheduler, state, comparisons, original, tuple(output.shape))


def _parameter_names(module: nn.Module) -> list[str]:
    """Every name of every parameter: a shared one has several, as in its state_dict."""
    return [name for name, _ in module.named_parameters(remove_duplicate=False)]


def _check_sharing(module: nn.Module, plan: Plan) -> None:
    names: dict[Tensor, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        first = names.setdefault(parameter, name)
        if first != name and plan.trained_parameters & {first, name}:
            raise UserError(
                f"model: '{name}' is the same tensor as '{first}'; shared weights cannot be trained in this version, "
                "leave these layers frozen"
            )


def _duplicate(step: Step, plan: Plan) -> Step:
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(step.body.graph, {}))
    body = torch.fx.GraphModule(step.body, graph)
    return Step(body, list(step.inputs), list(step.outputs), plan, dict(step.tensors), step.updated_buffers)


def _named(observe: Observer | None, program: str) -> Callable[[int, str, Step], None] | None:
    if observe is None or program in COMPARISONS:
        return None
    return lambda index, name, step: observe(program, index, name, step)
