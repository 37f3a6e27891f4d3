"""The compiler as two steps: `analyse` knows everything about the step to be, `build` generates and links its code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch.utils._pytree as pytree
from torch import Tensor

from gfcompile.codegen.arena import plan_arena
from gfcompile.codegen.driver import Planned
from gfcompile.codegen.lower import lower, translate
from gfcompile.codegen.program import make_program
from gfcompile.codegen.scheduling import Scheduler
from gfcompile.codegen.state import StateTable
from gfcompile.codegen.support import Unsupported
from gfcompile.codegen.tuned.algorithms import choose_by
from gfcompile.codegen.tuned.database import NOTHING_KNOWN, Databases
from gfcompile.errors import UserError
from gfcompile.frontend.losses import Loss, main_output
from gfcompile.frontend.survey import shared_names, survey
from gfcompile.frontend.trace import forward_step, run_once, trace_forward, trace_training, working_copy
from gfcompile.geometry.winograd import Choose, choose_edge
from gfcompile.job import COMPARISONS, Analysis, Job, Lowered, Traced
from gfcompile.passes import pipeline
from gfcompile.passes.prefix import Prefix, find_prefix, split
from gfcompile.plan import Layer, Plan, make_plan
from gfcompile.step import Step
from gfcompile.targets import Target, find_target

Observer = Callable[[str, int, str, Step], None]
Progress = Callable[[str], None]


def make_survey(job: Job) -> list[Layer]:
    """The model's layers in order of execution."""
    module = working_copy(job.module)
    output = run_once(module, job.example)
    return survey(trace_forward(module, job.example), module, read_output(job.loss, output))


def trace(job: Job, progress: Progress = lambda _: None) -> Traced:
    """Run the model once, survey it, plan, and trace what is to be compiled."""
    if job.fixed_mode and "train" in job.request.norms.values():
        raise UserError(
            "--batchnorm train: a .pt2 file has its batch norms fixed; export it from the module again, or use eval"
        )
    _check_batch(job.example)
    module = working_copy(job.module)
    progress("tracing the forward pass")
    output = run_once(module, job.example)
    forward = trace_forward(module, job.example)
    layers = survey(forward, module, read_output(job.loss, output))
    plan = make_plan(layers, job.request)
    job.optimizer.check_groups(name for name, _ in module.named_parameters(remove_duplicate=False))
    shared = shared_names(module)
    original = {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}
    progress("tracing the backward pass")
    training = trace_training(module, job.example, job.loss.target_like(output), job.loss, plan)
    prediction = forward_step(forward, plan, job.example, training.updated_buffers)
    return Traced(layers, plan, training, prediction, original, output, shared)


def find_unsupported(job: Job, progress: Progress = lambda _: None) -> tuple[Plan, list[Unsupported]]:
    """What of the job cannot be compiled, all of it at once and before anything is."""
    traced = trace(job, progress)
    progress("looking at every operator")
    found: dict[str, Unsupported] = {}
    for step, passes in (
        (traced.forward, pipeline.prediction_passes()),
        (traced.training, pipeline.gradient_passes(job.calculus)),
    ):
        for each in translate(pipeline.run(step, passes))[1]:
            found.setdefault(each.operator, each)
    return traced.plan, list(found.values())


def analyse(
    job: Job,
    observe: Observer | None = None,
    progress: Progress = lambda _: None,
    target: Target | None = None,
    tuning: Databases = NOTHING_KNOWN,
) -> Analysis:
    """Trace, plan, rewrite, lower, schedule and place in memory; generates no code. The target is native by default."""
    target = target or find_target("native")
    return place(lower_job(job, target.kind, observe, progress, choose_by(tuning, target)), target, progress, tuning)


def lower_job(
    job: Job,
    kind: str = "cpu",
    observe: Observer | None = None,
    progress: Progress = lambda _: None,
    algorithms: Choose = choose_edge,
    comparisons: bool = True,
) -> Lowered:
    """Trace, plan, rewrite and lower for targets of this kind; without `comparisons`, only what would be built."""
    winograd = allowed_algorithms(job, kind, algorithms)
    traced = trace(job, progress)
    plan = traced.plan
    exact = replace(plan, trained=tuple(replace(layer, r=None, channels=None) for layer in plan.trained), refused=())
    variants = {
        "train": (traced.training, plan, pipeline.training_passes(job.optimizer, job.calculus, winograd)),
        "gradients": (traced.training, plan, pipeline.gradient_passes(job.calculus, winograd)),
        "exact": (traced.training, exact, pipeline.training_passes(job.optimizer, False, winograd)),
        "published": (traced.training, plan, pipeline.training_passes(job.optimizer, False, winograd)),
        "predict": (traced.forward, plan, pipeline.prediction_passes(winograd)),
    }
    steps, modules = {}, {}
    for name, (source, its_plan, passes) in variants.items():
        if name in COMPARISONS and not comparisons:
            continue
        progress(f"rewriting and lowering: {name}")
        steps[name] = pipeline.run(source.duplicate(its_plan), passes, _named(observe, name))
        modules[name] = lower(steps[name])
    prefix = find_prefix(steps["train"])
    if job.cache_prefix:
        for name, step in _cut(steps["train"], prefix).items():
            progress(f"lowering: {name}")
            if observe is not None:
                observe(name, 0, "cut", step)
            steps[name], modules[name] = step, lower(step)
    return Lowered(job, traced, steps, modules, prefix)


def allowed_algorithms(job: Job, kind: str, choose: Choose) -> Choose | None:
    """How convolutions are computed; None: by their plain sums, as Winograd's transforms have no template for GPUs."""
    return choose if job.winograd and kind == "cpu" else None


def place(
    lowered: Lowered,
    target: Target,
    progress: Progress = lambda _: None,
    tuning: Databases = NOTHING_KNOWN,
) -> Analysis:
    """Schedule the kernels for a target, order them, and give every tensor its place."""
    scheduler = Scheduler(target, tuning)
    programs, state = {}, StateTable()
    for name, module in lowered.modules.items():
        progress(f"scheduling: {name}")
        program = make_program(name, module, lowered.steps[name], scheduler)
        programs[name] = Planned(program, plan_arena(program))
        if name not in COMPARISONS:
            state.add(name, lowered.steps[name])
    comparisons = {name: programs.pop(name) for name in COMPARISONS if name in programs}
    traced = lowered.traced
    return Analysis(
        lowered.job,
        traced.layers,
        traced.plan,
        lowered.steps,
        programs,
        scheduler,
        state,
        comparisons,
        lowered.prefix,
        traced.original,
        traced.output,
        traced.shared,
    )


def read_output(loss: Loss, output: Any) -> int | None:
    """Which of the model's outputs a built-in loss reads; a user's function may read them all."""
    if not loss.per_sample:
        return None
    main = main_output(output)
    return next((index for index, part in enumerate(pytree.tree_leaves(output)) if part is main), None)


def _cut(train: Step, prefix: Prefix) -> dict[str, Step]:
    if prefix.refusal is not None:
        raise UserError(f"--cache-prefix: nothing to cache: {prefix.refusal}")
    features, rest = split(train, prefix)
    return {"features": features, "train_features": rest}


def _check_batch(inputs: tuple[Tensor, ...]) -> None:
    sizes = {x.shape[0] if x.dim() else 0 for x in inputs}
    if len(sizes) != 1 or 0 in sizes:
        shapes = " and ".join("x".join(map(str, x.shape)) or "a scalar" for x in inputs)
        raise UserError(f"model: inputs of {shapes}; every input must have the batch as its first axis")


def _named(observe: Observer | None, program: str) -> Callable[[int, str, Step], None] | None:
    if observe is None or program in COMPARISONS:
        return None
    return lambda index, name, step: observe(program, index, name, step)
