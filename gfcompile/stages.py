"""The stages of the road, each a function from what is known before it to what is known after: see `compiler.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch.utils._pytree as pytree
from torch import Tensor

from gfcompile.codegen import lower as relax
from gfcompile.codegen.arena import plan_arena
from gfcompile.codegen.driver import Planned
from gfcompile.codegen.program import make_program
from gfcompile.codegen.scheduling import Scheduler
from gfcompile.codegen.state import StateTable
from gfcompile.codegen.store import open_store
from gfcompile.codegen.support import Unsupported
from gfcompile.codegen.tuned.algorithms import choose_by
from gfcompile.codegen.tuned.database import NOTHING_KNOWN, Databases
from gfcompile.errors import UserError
from gfcompile.frontend.losses import Loss, main_output
from gfcompile.frontend.survey import shared_names, survey
from gfcompile.frontend.trace import forward_step, run_once, trace_forward, trace_training, working_copy
from gfcompile.geometry.winograd import Choose, choose_edge
from gfcompile.job import Analysis, Job, Lowered, Rewritten, Scheduled, Surveyed, Traced
from gfcompile.passes import pipeline
from gfcompile.passes.prefix import Prefix, find_prefix, split
from gfcompile.plan import Layer, Plan, make_plan
from gfcompile.progress import Progress, silent
from gfcompile.settings.words import flag, option
from gfcompile.step import Step
from gfcompile.targets import Target, find_target

Observer = Callable[[str, int, str, Step], None]  # program, index and name of the pass, the step after it


def look_at(job: Job, progress: Progress = silent) -> Surveyed:
    """Run the model once and trace its forward pass: its layers in order of execution."""
    _check_batch(job.example)
    module = working_copy(job.module)
    progress("tracing the forward pass")
    output = run_once(module, job.example)
    forward = trace_forward(module, job.example)
    return Surveyed(job, module, survey(forward, module, _read_output(job.loss, output)), forward, output)


def make_survey(job: Job) -> list[Layer]:
    """The model's layers alone."""
    return look_at(job).layers


def trace_steps(surveyed: Surveyed, plan: Plan, progress: Progress = silent) -> Traced:
    """The training step and the prediction as graphs, before any pass."""
    job, module = surveyed.job, surveyed.module
    if job.fixed_mode and plan.batchnorm == "train":
        raise UserError(
            f"{option('batchnorm', 'train')}: a .pt2 file has its batch norms fixed; export it from the module"
            " again, or use"
            " eval"
        )
    job.optimizer.check_groups(name for name, _ in module.named_parameters(remove_duplicate=False))
    shared = shared_names(module)
    original = {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}
    progress("tracing the backward pass")
    training = trace_training(module, job.example, job.loss.target_like(surveyed.output), job.loss, plan)
    prediction = forward_step(surveyed.forward, plan, job.example, training.updated_buffers)
    prediction.evaluated = training.evaluated
    return Traced(job, surveyed.layers, plan, training, prediction, original, surveyed.output, shared)


def trace(job: Job, progress: Progress = silent) -> Traced:
    """Look at the model, plan, and trace what is to be compiled."""
    surveyed = look_at(job, progress)
    return trace_steps(surveyed, make_plan(surveyed.layers, job.request), progress)


def find_unsupported(job: Job, progress: Progress = silent) -> tuple[Plan, list[Unsupported]]:
    """What of the job cannot be compiled, all of it at once and before anything is."""
    traced = trace(job, progress)
    progress("looking at every operator")
    found: dict[str, Unsupported] = {}
    for step, passes in (
        (traced.forward, pipeline.prediction_passes()),
        (traced.training, pipeline.gradient_passes(job.calculus)),
    ):
        for each in relax.translate(pipeline.run(step, passes))[1]:
            found.setdefault(each.operator, each)
    return traced.plan, list(found.values())


def rewrite(
    traced: Traced,
    kind: str = "cpu",
    observe: Observer | None = None,
    progress: Progress = silent,
    algorithms: Choose = choose_edge,
) -> Rewritten:
    """Every program that will be built, after its passes, for targets of this kind."""
    job, plan = traced.job, traced.plan
    winograd = allowed_algorithms(job, kind, algorithms)
    variants = {
        "train": (traced.training, pipeline.training_passes(job.optimizer, job.calculus, winograd)),
        "gradients": (traced.training, pipeline.gradient_passes(job.calculus, winograd)),
        "predict": (traced.forward, pipeline.prediction_passes(winograd)),
    }
    steps = {}
    for name, (source, passes) in variants.items():
        progress(f"rewriting: {name}")
        steps[name] = pipeline.run(source.duplicate(plan), passes, _named(observe, name))
    prefix = find_prefix(steps["train"])
    if job.cache_prefix:
        for name, step in _cut(steps["train"], prefix).items():
            if observe is not None:
                observe(name, 0, "cut", step)
            steps[name] = step
    return Rewritten(traced, steps, prefix)


def allowed_algorithms(job: Job, kind: str, choose: Choose) -> Choose | None:
    """How convolutions are computed; None: by their plain sums, as Winograd's transforms have no template for GPUs."""
    return choose if job.winograd and kind == "cpu" else None


def lower(rewritten: Rewritten, progress: Progress = silent) -> Lowered:
    """Every program as kernels that no schedule has touched."""
    modules = {}
    for name, step in rewritten.steps.items():
        progress(f"lowering: {name}")
        modules[name] = relax.lower(step)
    return Lowered(rewritten.traced, rewritten.steps, modules, rewritten.prefix)


def lower_job(
    job: Job,
    kind: str = "cpu",
    observe: Observer | None = None,
    progress: Progress = silent,
    algorithms: Choose = choose_edge,
) -> Lowered:
    """Trace, plan, rewrite and lower."""
    return lower(rewrite(trace(job, progress), kind, observe, progress, algorithms), progress)


def make_scheduler(target: Target, tuning: Databases = NOTHING_KNOWN) -> Scheduler:
    """One for a target, with the user's store."""
    return Scheduler(target, tuning, open_store())


def schedule(lowered: Lowered, scheduler: Scheduler, progress: Progress = silent) -> Scheduled:
    """Schedule the kernels for a target, and order the calls."""
    programs = {}
    for name, module in lowered.modules.items():
        progress(f"scheduling: {name}")
        programs[name] = make_program(name, module, lowered.steps[name], scheduler)
    return Scheduled(lowered, scheduler, programs)


def plan_comparisons(traced: Traced, scheduler: Scheduler) -> dict[str, Planned]:
    """The step's peers in the report, which nobody builds, so their kernels are left out: see `Analysis`."""
    job, plan = traced.job, traced.plan
    winograd = allowed_algorithms(job, scheduler.target.kind, choose_by(scheduler.tuning, scheduler.target))
    passes = pipeline.training_passes(job.optimizer, False, winograd)
    exact = replace(plan, trained=tuple(replace(layer, r=None, channels=None) for layer in plan.trained), refused=())
    found = {}
    for name, its_plan in (("exact", exact), ("published", plan)):
        step = pipeline.run(traced.training.duplicate(its_plan), passes)
        program = make_program(name, relax.lower(step), step, scheduler)
        found[name] = Planned(replace(program, functions={}), plan_arena(program))
    return found


def give_places(scheduled: Scheduled, compare: Callable[[], dict[str, Planned]] | None = None) -> Analysis:
    """Give every tensor its place in the arena or the state. `compare` knows better when to make the comparisons."""
    lowered, state = scheduled.lowered, StateTable()
    programs = {name: Planned(program, plan_arena(program)) for name, program in scheduled.programs.items()}
    for name in programs:
        state.add(name, lowered.steps[name])
    traced = lowered.traced
    return Analysis(
        job=traced.job,
        layers=traced.layers,
        plan=traced.plan,
        steps=lowered.steps,
        programs=programs,
        scheduler=scheduled.scheduler,
        state=state,
        prefix=lowered.prefix,
        original=traced.original,
        output=traced.output,
        shared=traced.shared,
        compare=compare or (lambda: plan_comparisons(traced, scheduled.scheduler)),
    )


def place(lowered: Lowered, target: Target, progress: Progress = silent, tuning: Databases = NOTHING_KNOWN) -> Analysis:
    """Schedule for a target, and place."""
    return give_places(schedule(lowered, make_scheduler(target, tuning), progress))


def analyse(
    job: Job,
    observe: Observer | None = None,
    progress: Progress = silent,
    target: Target | None = None,
    tuning: Databases = NOTHING_KNOWN,
) -> Analysis:
    """All stages that generate no code. The target is native by default."""
    target = target or find_target("native")
    scheduler = make_scheduler(target, tuning)  # first, for it refuses a limit of the store that is none
    lowered = lower_job(job, target.kind, observe, progress, choose_by(tuning, target))
    return give_places(schedule(lowered, scheduler, progress))


def _read_output(loss: Loss, output: Any) -> int | None:
    """Which of the model's outputs a built-in loss reads; a user's function may read them all."""
    if not loss.per_sample:
        return None
    main = main_output(output)
    return next((index for index, part in enumerate(pytree.tree_leaves(output)) if part is main), None)


def _cut(train: Step, prefix: Prefix) -> dict[str, Step]:
    if prefix.refusal is not None:
        raise UserError(f"{flag('cache_prefix')}: nothing to cache: {prefix.refusal}")
    features, rest = split(train, prefix)
    return {"features": features, "train_features": rest}


def _check_batch(inputs: tuple[Tensor, ...]) -> None:
    sizes = {x.shape[0] if x.dim() else 0 for x in inputs}
    if len(sizes) != 1 or 0 in sizes:
        shapes = " and ".join("x".join(map(str, x.shape)) or "a scalar" for x in inputs)
        raise UserError(f"model: inputs of {shapes}; every input must have the batch as its first axis")


def _named(observe: Observer | None, program: str) -> Callable[[int, str, Step], None] | None:
    if observe is None:
        return None
    return lambda index, name, step: observe(program, index, name, step)
