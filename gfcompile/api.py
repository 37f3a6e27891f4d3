"""The Python door: compile a module, load an artifact."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gfcompile.budget.fit_memory import fit_memory, read_sparse
from gfcompile.budget.page import write_found
from gfcompile.budget.plan_path import check_out
from gfcompile.budget.planfile import apply_choices, apply_plan
from gfcompile.budget.planner import EDGES as PLAN_EDGES
from gfcompile.budget.planner import SHARES as PLAN_SHARES
from gfcompile.budget.planner import Found, make_planner
from gfcompile.codegen.link import choose_linker
from gfcompile.codegen.tuned.database import NOTHING_KNOWN, Databases
from gfcompile.compiler import compile_job
from gfcompile.errors import UserError
from gfcompile.frontend.example import example_input
from gfcompile.frontend.load import LoadedModel, from_module
from gfcompile.frontend.losses import resolve_loss
from gfcompile.job import Job
from gfcompile.noise.advice import LEAST_COSINE
from gfcompile.noise.quality import EDGES, Quality, measure_quality
from gfcompile.optimizers import resolve_optimizer, starting_rate
from gfcompile.plan import DEFAULT_PATCH, Request
from gfcompile.runtime.step import Step as RuntimeStep
from gfcompile.settings import read_bytes, read_count
from gfcompile.targets import Target, explain_foreign, find_target

INPUT_TYPES = (torch.float32, torch.int64, torch.bool)


class CompiledStep(RuntimeStep):
    """The artifact's step, with tensors where PyTorch users expect them."""

    def state_dict(self) -> dict[str, Tensor]:
        """The trained weights under the model's own names: `model.load_state_dict(step.state_dict())`."""
        return {name: torch.from_numpy(array.copy()) for name, array in super().state_dict().items()}

    def export_onnx(self, path: str | os.PathLike[str]) -> None:
        """The trained model as an ONNX file, for the compiled batch; its weights are named as in the state_dict."""
        from gfcompile.export.export import write_trained_model

        write_trained_model(self._folder, self.manifest, super().state_dict(), Path(path))


def compile(
    model: nn.Module,
    example_inputs: Any,
    *,
    layers: int | None = None,
    r: int | Mapping[str, int | None] = DEFAULT_PATCH,
    exact: bool = False,
    train: str | Sequence[str] | None = None,
    train_affine: bool = False,
    calculus: bool = True,
    winograd: bool = True,
    cache_prefix: bool = False,
    batchnorm: str | Mapping[str, str] = "eval",
    dropout: bool = False,
    plan: str | os.PathLike[str] | Found | None = None,
    sparse: float | Literal["auto"] | Mapping[str, float] | None = None,
    sparse_strategy: str = "step",
    memory: int | str | None = None,
    compat: str | None = None,
    target: str = "native",
    arch: str | None = None,
    linker: str | None = None,
    libc: str | None = None,
    loss: str | Mapping[str, Any] | Callable[[Any, Tensor], Tensor] = "cross_entropy",
    optimizer: Any = "sgd",
    lr: float | None = None,
    momentum: float | None = None,
    weight_decay: float | None = None,
    groups: Mapping[str, Mapping[str, Any]] | None = None,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    tuning: bool | str | os.PathLike[str] = True,
    out: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    debug: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> CompiledStep:
    """Compile `model`'s training step for the shapes of `example_inputs` and load it.

    `layers` trains the last N convolutions and the head; `r` is the patch edge, an int or {pattern: r} with "*" for
    the rest and None for layers that stay exact; `train` adds layers by name pattern, `train_affine` the batch norms
    behind trained convolutions. The model itself is not changed. `batchnorm` is eval, train or frozen, or {pattern:
    mode}; `dropout` turns the model's dropouts on. Several inputs are a tuple, in `example_inputs` and in every
    call. `calculus=False` filters as published: the same gradients from more memory. `winograd=False` computes
    every convolution as its plain sum: slower, with less scratch memory and a little less rounding. `cache_prefix`
    adds what `step.open_cache` needs: the frozen part of the network is then computed once a sample instead of once
    an epoch. `debug` makes a slower step that checks the memory around every buffer after every kernel, with the
    same results.

    `sparse` updates, a step, the weights of that share of a trained convolution's input channels only, 0.1 or {pattern:
    share}, and keeps nothing of the others for the backward pass. They are drawn anew every step (`sparse_strategy`
    "step"), every epoch ("epoch": set `step.epoch`), once ("fixed"), or are those with the largest weights ("norm").
    `plan` is a plan.toml, or what `find_plan` returned, in place of `layers`, `train`, `exact`, `sparse` and `r`.
    With sparse="auto", as many layers as keep no more than `memory` bytes for the backward pass (262144, "256KB").

    `loss` is a name ("cross_entropy:label_smoothing=0.1"), a mapping, a loss of torch.nn, or a callable (output,
    target) -> scalar. `optimizer` is sgd, adam, adamw or rmsprop: a name, a mapping, gfcompile.AdamW(...), or a new
    torch.optim one over the model's parameters, whose groups hold for the parameters in them; a trained one in none
    takes the first group's settings. `groups` gives settings to parameters by name, {"*.bias": {"weight_decay": 0.0,
    "lr_factor": 0.1}}; `clip_norm` and `clip_value` clip the gradients that it reads.

    `target` is a machine that `gfcompile targets` lists, or a .toml file; it must be one that runs here, `build` is for
    the others. `arch` is the GPU's of target "cuda"; `linker` is zig or gcc, `libc` glibc or musl, if not the target's.
    Schedules that `gfcompile tune` found faster are followed, those of the file `tuning` first; none if it is False.
    """
    given = dict(locals())
    del given["threads"]
    foreign = explain_foreign(_machine(target, arch, linker, libc))
    if foreign is not None:
        raise UserError(f"target '{target}': {foreign}; gfcompile.build(...) writes the artifact without loading it")
    return load(build(**given), threads)


def build(
    model: nn.Module,
    example_inputs: Any,
    *,
    layers: int | None = None,
    r: int | Mapping[str, int | None] = DEFAULT_PATCH,
    exact: bool = False,
    train: str | Sequence[str] | None = None,
    train_affine: bool = False,
    calculus: bool = True,
    winograd: bool = True,
    cache_prefix: bool = False,
    batchnorm: str | Mapping[str, str] = "eval",
    dropout: bool = False,
    plan: str | os.PathLike[str] | Found | None = None,
    sparse: float | Literal["auto"] | Mapping[str, float] | None = None,
    sparse_strategy: str = "step",
    memory: int | str | None = None,
    compat: str | None = None,
    target: str = "native",
    arch: str | None = None,
    linker: str | None = None,
    libc: str | None = None,
    loss: str | Mapping[str, Any] | Callable[[Any, Tensor], Tensor] = "cross_entropy",
    optimizer: Any = "sgd",
    lr: float | None = None,
    momentum: float | None = None,
    weight_decay: float | None = None,
    groups: Mapping[str, Mapping[str, Any]] | None = None,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    tuning: bool | str | os.PathLike[str] = True,
    out: str | os.PathLike[str] | None = None,
    debug: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Path:
    """Write the artifact for a machine that need not be this one; returns its folder. Arguments as of `compile`."""
    if not isinstance(model, nn.Module):
        raise UserError(
            f"model: a '{type(model).__name__}' is not an nn.Module; load it first, or use the command line"
        )
    loaded = from_module(model)
    patches: dict[str, int | None] = dict(r) if isinstance(r, Mapping) else {"*": r}
    given = sparse if isinstance(sparse, Mapping) else {} if sparse is None else {"*": sparse}
    shares, budget = read_sparse(given, memory, sparse_strategy, plan is not None)
    settings = {
        "momentum": momentum,
        "weight_decay": weight_decay,
        "groups": groups,
        "clip_norm": clip_norm,
        "clip_value": clip_value,
    }
    chosen = resolve_optimizer(optimizer, settings, model.named_parameters(remove_duplicate=False))
    job = Job(
        module=loaded.module,
        example=_example(loaded, example_inputs),
        loss=resolve_loss(loss),
        request=Request(
            layers, patches, _patterns(train), exact, batchnorm, compat, train_affine, dropout, shares, sparse_strategy
        ),
        optimizer=chosen,
        lr=starting_rate(optimizer, chosen, lr),
        fixed_mode=loaded.fixed_mode,
        calculus=calculus,
        winograd=winograd,
        cache_prefix=cache_prefix,
        skeleton=loaded.onnx_skeleton,
    )
    machine = _machine(target, arch, linker, libc)
    if plan is not None:
        job = apply_choices(job, plan.chosen.choices) if isinstance(plan, Found) else apply_plan(job, Path(plan))
    if budget is not None:
        job = fit_memory(job, budget, machine, progress)
    folder = Path(out) if out is not None else Path(f"{loaded.name}_step")
    return compile_job(job, folder, machine, progress, debug=debug, tuning=_databases(tuning))


def quality(
    model: nn.Module,
    x: Any,
    y: Any,
    *,
    layers: int | None = None,
    r: Sequence[int] = EDGES,
    train: str | Sequence[str] | None = None,
    batchnorm: str | Mapping[str, str] = "eval",
    dropout: bool = False,
    loss: str | Mapping[str, Any] | Callable[[Any, Tensor], Tensor] = "cross_entropy",
    cosine: float = LEAST_COSINE,
    progress: Callable[[str], None] = lambda _: None,
) -> Quality:
    """Measure how far filtered gradients are from exact ones on the batch `x`, `y`, for every patch edge in `r`.

    Of each layer that `layers` and `train` choose (as in `compile`): SNR in dB and cosine of filtered against exact
    weight gradients (gw) and input gradients (gx), once with only that layer filtered (`alone`: its gy is exact) and
    once with all of them (`together`: the noise of the layers behind it has arrived); the DC energy ratio of its
    kernels; and the largest r that it bears, where the cosine of gw alone is `cosine` or more. `print(result)` shows a
    table and the advice in words, `result.as_data()` is plain data, `result.picture()` an SVG. Nothing is compiled.
    """
    inputs = x if isinstance(x, (tuple, list)) else (x,)
    job = Job(
        from_module(model).module,
        tuple(_as_input(each) for each in inputs),
        resolve_loss(loss),
        Request(layers, train=_patterns(train), batchnorm=batchnorm, dropout=dropout),
    )
    return measure_quality(job, torch.as_tensor(y).detach().cpu(), r, cosine, progress=progress)


def find_plan(
    model: nn.Module,
    example_inputs: Any,
    *,
    memory: int | str,
    step_flops: float | str | None = None,
    data: tuple[Any, Any] | None = None,
    layers: int | None = None,
    train: str | Sequence[str] | None = None,
    r: Sequence[int] = PLAN_EDGES,
    sparse: Sequence[float] = PLAN_SHARES,
    batchnorm: str | Mapping[str, str] = "eval",
    dropout: bool = False,
    target: str = "native",
    arch: str | None = None,
    loss: str | Mapping[str, Any] | Callable[[Any, Tensor], Tensor] = "cross_entropy",
    optimizer: Any = "sgd",
    tuning: bool | str | os.PathLike[str] = True,
    out: str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Found:
    """What to do with each convolution so that the step's arena takes at most `memory` bytes (2097152, "2MB").

    Of the layers that `layers` and `train` choose (all by default) each is frozen, trained exactly, or filtered with
    one of `r`, with all input channels or with a share of `sparse` updated a step; the head is trained. `data` is a
    batch (x, y) on which layers and noise are measured; without, every layer is worth the same and noise is estimated
    from the kernels. `step_flops` bounds the FLOPs of the convolutions of a step. `out` is written as plan.toml, which
    `compile(plan=...)` takes; a `Found` does as well. The best candidate whose arena, as the compiler places it, keeps
    to the budget is returned: more memory never gives a worse score.
    """
    if out is not None:
        check_out(Path(out), fresh=False)
    loaded = from_module(model)
    chosen = resolve_optimizer(optimizer, {}, model.named_parameters(remove_duplicate=False))
    job = Job(
        loaded.module,
        _example(loaded, example_inputs),
        resolve_loss(loss),
        Request(layers, train=_patterns(train), batchnorm=batchnorm, dropout=dropout),
        chosen,
    )
    batch = None
    if data is not None:
        x, y = data
        given = x if isinstance(x, (tuple, list)) else (x,)
        batch = (tuple(_as_input(each) for each in given), torch.as_tensor(y).detach().cpu())
    planner = make_planner(job, find_target(target, arch), r, sparse, batch, _databases(tuning), progress)
    flops = None if step_flops is None else read_count("step_flops", step_flops)
    found = planner.measured(planner.find(read_bytes("memory", memory), flops))
    if out is not None:
        write_found(found, Path(out))
    return found


def load(path: str | os.PathLike[str], threads: int | None = None) -> CompiledStep:
    """Load an artifact's folder."""
    return CompiledStep(path, threads)


def _machine(target: str, arch: str | None, linker: str | None, libc: str | None) -> Target:
    return choose_linker(find_target(target, arch), linker, libc)


def _example(loaded: LoadedModel, example_inputs: Any) -> tuple[Tensor, ...]:
    given = example_inputs if isinstance(example_inputs, (tuple, list)) else (example_inputs,)
    if not given:
        raise UserError("example_inputs: is empty; pass a batch, or a tuple of them for a model with several inputs")
    if len(given) == 1 and not isinstance(given[0], Tensor):
        return example_input(loaded, tuple(given[0].shape), None)[0]
    return tuple(_as_input(x) for x in given)


def _databases(tuning: bool | str | os.PathLike[str]) -> Databases:
    return NOTHING_KNOWN if tuning is False else Databases.open(None if tuning is True else Path(tuning))


def _patterns(train: str | Sequence[str] | None) -> tuple[str, ...]:
    return (train,) if isinstance(train, str) else tuple(train or ())


def _as_input(x: Any) -> Tensor:
    tensor = x if isinstance(x, Tensor) else torch.as_tensor(x)
    if tensor.dtype not in INPUT_TYPES:
        raise UserError(f"example_inputs: type {tensor.dtype}; pass float32, or int64 for indices")
    return tensor.detach().cpu()
