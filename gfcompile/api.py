"""The Python front: compile a module, load an artifact, measure, plan."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from gfcompile.budget.fit_memory import fit_memory, read_sparse
from gfcompile.budget.page import write_found
from gfcompile.budget.plan_path import check_out
from gfcompile.budget.planfile import apply_choices, apply_plan
from gfcompile.budget.planner import Found, make_planner
from gfcompile.codegen.link import choose_linker
from gfcompile.codegen.tuned.database import NOTHING_KNOWN, Databases
from gfcompile.compiler import compile_job
from gfcompile.errors import UserError
from gfcompile.frontend.example import example_input
from gfcompile.frontend.load import LoadedModel, from_module
from gfcompile.frontend.losses import resolve_loss
from gfcompile.interrupts import noting
from gfcompile.job import Job
from gfcompile.noise.quality import Quality, measure_quality
from gfcompile.optimizers import resolve_optimizer, starting_rate
from gfcompile.progress import Progress, silent
from gfcompile.runtime.step import Step as RuntimeStep
from gfcompile.settings.fields import Group, make
from gfcompile.settings.planning import Measuring, Planning
from gfcompile.settings.reference import document, parameters
from gfcompile.settings.schema import Machine, Request, Settings, Training, Which
from gfcompile.settings.text import read_bytes, read_count
from gfcompile.settings.words import Caller, option, speaking_to
from gfcompile.targets import Target, explain_foreign, find_target

if TYPE_CHECKING:
    from typing import Unpack

    from gfcompile.settings.keywords import MeasuringKeywords, PlanningKeywords, SettingsKeywords

INPUT_TYPES = (torch.float32, torch.int64, torch.bool)
P = ParamSpec("P")
R = TypeVar("R")


class CompiledStep(RuntimeStep):
    """The artifact's step, with tensors where PyTorch users expect them."""

    def state_dict(self) -> dict[str, Tensor]:
        """The trained weights under the model's own names: `model.load_state_dict(step.state_dict())`."""
        return {name: torch.from_numpy(array.copy()) for name, array in super().state_dict().items()}

    def export_onnx(self, path: str | os.PathLike[str]) -> None:
        """The trained model as an ONNX file, for the compiled batch; its weights are named as in the state_dict."""
        from gfcompile.export.export import write_trained_model

        write_trained_model(self._folder, self.manifest, super().state_dict(), Path(path))


def takes(group: type[Group]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A function of Python: its signature and its text name the group's settings, its errors speak Python, and
    interrupts are noted."""

    def wrap(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*arguments: P.args, **keywords: P.kwargs) -> R:
            with speaking_to(Caller.PYTHON), noting():
                return function(*arguments, **keywords)

        signature = inspect.signature(function)
        own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        named = signature.replace(parameters=[*own, *parameters(group)])
        call.__signature__ = named  # type: ignore[attr-defined]
        call.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\n{document(group)}"
        return call

    return wrap


@takes(Settings)
def compile(
    model: nn.Module,
    example_inputs: Any,
    *,
    threads: int | None = None,
    progress: Progress = silent,
    **settings: Unpack[SettingsKeywords],
) -> CompiledStep:
    """Compile `model`'s training step for the shapes of `example_inputs` and load it. The model is not changed.

    Several inputs are a tuple, here and in every call. `threads` are those of the step; `progress` is told what is
    being done. The target must run here: `build` is for other machines.
    """
    given = make(Settings, settings, "compile")
    foreign = explain_foreign(find_machine(given))
    if foreign is not None:
        where = option("target", given.target)
        raise UserError(f"{where}: {foreign}; gfcompile.build(...) writes the artifact without loading it")
    return load(_build(model, example_inputs, given, progress), threads)


@takes(Settings)
def build(
    model: nn.Module, example_inputs: Any, *, progress: Progress = silent, **settings: Unpack[SettingsKeywords]
) -> Path:
    """Write the artifact for a machine that need not be this one; returns its folder. Arguments as of `compile`."""
    return _build(model, example_inputs, make(Settings, settings, "build"), progress)


@takes(Measuring)
def quality(
    model: nn.Module, x: Any, y: Any, *, progress: Progress = silent, **settings: Unpack[MeasuringKeywords]
) -> Quality:
    """Measure how far filtered gradients are from exact ones on the batch `x`, `y`, for every patch edge in `r`.

    Of each layer that `layers` and `train` choose (as in `compile`): SNR in dB and cosine of filtered against exact
    weight gradients (gw) and input gradients (gx), once with only that layer filtered (`alone`: its gy is exact) and
    once with all of them (`together`: the noise of the layers after it has arrived); the DC energy ratio of its
    kernels; and the largest r that it bears, where the cosine of gw alone is `cosine` or more. `print(result)` shows a
    table and the advice in words, `result.as_data()` is plain data, `result.picture()` an SVG. Nothing is compiled.
    """
    given = make(Measuring, settings, "quality")
    request = given.narrowed(Which).widened(Request)
    job = Job(_from_module(model).module, _inputs(x), resolve_loss(given.loss), request)
    return measure_quality(job, torch.as_tensor(y).detach().cpu(), given.r, given.cosine, progress=progress)


@takes(Planning)
def find_plan(
    model: nn.Module,
    example_inputs: Any,
    *,
    data: tuple[Any, Any] | None = None,
    out: str | os.PathLike[str] | None = None,
    progress: Progress = silent,
    **settings: Unpack[PlanningKeywords],
) -> Found:
    """What to do with each convolution so that the step's arena takes at most `memory` bytes (2097152, "2MB").

    Of the layers that `layers` and `train` choose (all by default) each is frozen, trained exactly, or filtered with
    one of `r`, with all input channels or with a share of `sparse` updated per step; the head is trained. `data` is a
    batch (x, y) on which layers and noise are measured; without, every layer is worth the same and noise is estimated
    from the kernels. `step_flops` bounds the FLOPs of the convolutions of a step. `out` is written as plan.toml, which
    `compile(plan=...)` takes; a `Found` does as well. The best candidate whose arena, as the compiler places it, keeps
    to the budget is returned: more memory never gives a worse score. Ctrl-C raises a KeyboardInterrupt whose `found` is
    the best plan so far, if there is one.
    """
    given = make(Planning, settings, "find_plan")
    if out is not None:
        check_out(Path(out), fresh=False)
    loaded = _from_module(model)
    job = planning_job(loaded, _example(loaded, example_inputs), given)
    batch = None if data is None else (_inputs(data[0]), torch.as_tensor(data[1]).detach().cpu())
    found = plan_within(job, given, batch, progress)
    if out is not None:
        write_found(found, Path(out))
    return found


def load(path: str | os.PathLike[str], threads: int | None = None) -> CompiledStep:
    """Load an artifact's folder."""
    return CompiledStep(path, threads)


def make_job(
    loaded: LoadedModel, example: tuple[Tensor, ...], settings: Settings, machine: Target, progress: Progress = silent
) -> Job:
    """What is to be compiled of a loaded model. Where a plan or a budget chooses the layers, it has chosen them."""
    has_plan = settings.plan is not None
    if has_plan and settings.r is not None:
        raise UserError(f"{option('plan')}: says what is filtered; leave out {option('r')}, and edit the file")
    shares, budget = read_sparse(settings.shares, settings.memory, settings.sparse_strategy, has_plan)
    optimizer, lr = _training(loaded, settings)
    job = Job(
        module=loaded.module,
        example=example,
        loss=resolve_loss(settings.loss),
        request=settings.narrowed(Request, sparse=shares),
        optimizer=optimizer,
        lr=lr,
        fixed_mode=loaded.fixed_mode,
        calculus=settings.calculus,
        winograd=settings.winograd,
        cache_prefix=settings.cache_prefix,
        skeleton=loaded.onnx_skeleton,
    )
    if isinstance(settings.plan, Found):
        job = apply_choices(job, settings.plan.chosen.choices)
    elif has_plan:
        job = apply_plan(job, Path(settings.plan))
    return job if budget is None else fit_memory(job, budget, machine, progress)


def planning_job(loaded: LoadedModel, example: tuple[Tensor, ...], settings: Planning) -> Job:
    """The job whose layers a plan is to choose among."""
    optimizer, lr = _training(loaded, settings)
    request = settings.narrowed(Which).widened(Request)
    return Job(loaded.module, example, resolve_loss(settings.loss), request, optimizer, lr, loaded.fixed_mode)


def plan_within(
    job: Job,
    settings: Planning,
    data: tuple[tuple[Tensor, ...], Tensor] | None,
    progress: Progress,
    source: str = "data",
) -> Found:
    """The best plan within the budget, its gradient measured if there is a batch; `source` begins errors about that."""
    if settings.memory is None:
        raise UserError(f"plan: needs a budget; give {option('memory')}, as in {option('memory', '2MB')}")
    memory = read_bytes(settings.memory)
    flops = None if settings.step_flops is None else read_count(settings.step_flops)
    databases = find_databases(settings.tuning)
    machine = find_machine(settings)
    planner = make_planner(job, machine, settings.r, settings.sparse, data, databases, progress, source)
    return planner.measured(planner.find(memory, flops))


def find_machine(settings: Machine) -> Target:
    """The target, with how it is to be linked."""
    return choose_linker(find_target(settings.target, settings.arch), settings.linker, settings.libc)


def find_databases(tuning: bool | str | os.PathLike[str]) -> Databases:
    """What compiling looks into: the file given first, the user's own, what is bundled; nothing if False."""
    return NOTHING_KNOWN if tuning is False else Databases.open(None if tuning is True else Path(tuning))


def _build(model: nn.Module, example_inputs: Any, settings: Settings, progress: Progress) -> Path:
    loaded, machine = _from_module(model), find_machine(settings)
    job = make_job(loaded, _example(loaded, example_inputs), settings, machine, progress)
    out = Path(settings.out) if settings.out is not None else Path(f"{loaded.name}_step")
    dump = Path(settings.dump) if settings.dump is not None else None
    return compile_job(job, out, machine, progress, dump, settings.debug, find_databases(settings.tuning))


def _training(loaded: LoadedModel, settings: Training) -> tuple[Any, float]:
    """The optimizer, and the learning rate to start with."""
    parameters = loaded.module.named_parameters(remove_duplicate=False)
    optimizer = resolve_optimizer(settings.optimizer, settings.optimizer_settings, parameters)
    return optimizer, starting_rate(settings.optimizer, optimizer, settings.lr)


def _from_module(model: Any) -> LoadedModel:
    if not isinstance(model, nn.Module):
        raise UserError(
            f"model: a '{type(model).__name__}' is not an nn.Module; load it first, or use the command line"
        )
    return from_module(model)


def _example(loaded: LoadedModel, example_inputs: Any) -> tuple[Tensor, ...]:
    given = example_inputs if isinstance(example_inputs, (tuple, list)) else (example_inputs,)
    if not given:
        raise UserError("example_inputs: is empty; pass a batch, or a tuple of them for a model with several inputs")
    if len(given) == 1 and not isinstance(given[0], Tensor):
        return example_input(loaded, tuple(given[0].shape), None)[0]
    return _inputs(given)


def _inputs(given: Any) -> tuple[Tensor, ...]:
    found = []
    for x in given if isinstance(given, (tuple, list)) else (given,):
        tensor = x if isinstance(x, Tensor) else torch.as_tensor(x)
        if tensor.dtype not in INPUT_TYPES:
            raise UserError(f"example_inputs: type {tensor.dtype}; pass float32, or int64 for indices")
        found.append(tensor.detach().cpu())
    return tuple(found)
