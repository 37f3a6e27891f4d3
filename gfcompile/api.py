"""The Python door: compile a module, load an artifact."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gfcompile.codegen import artifact
from gfcompile.codegen.cuda import packages
from gfcompile.codegen.link import choose_linker, require_linker
from gfcompile.compiler import Job, analyse
from gfcompile.dumps import Dumps
from gfcompile.errors import UserError
from gfcompile.frontend.example import example_input
from gfcompile.frontend.load import LoadedModel, from_module
from gfcompile.frontend.losses import resolve_loss
from gfcompile.optimizers import resolve_optimizer, starting_rate
from gfcompile.plan import DEFAULT_PATCH, Request
from gfcompile.runtime.step import Step as RuntimeStep
from gfcompile.targets import Target, explain_foreign, find_target
from gfcompile.tuning.database import NOTHING_KNOWN, Databases

INPUT_TYPES = (torch.float32, torch.int64, torch.bool)


class CompiledStep(RuntimeStep):
    """The artifact's step, with tensors where PyTorch users expect them."""

    def state_dict(self) -> dict[str, Tensor]:
        """The trained weights under the model's own names: `model.load_state_dict(step.state_dict())`."""
        return {name: torch.from_numpy(array.copy()) for name, array in super().state_dict().items()}

    def export_onnx(self, path: str | os.PathLike[str]) -> None:
        """The trained model as an ONNX file, for the compiled batch; its weights are named as in the state_dict."""
        from gfcompile.onnx_out.export import write_trained_model

        write_trained_model(self._folder, self.manifest, super().state_dict(), Path(path))


def compile(
    model: nn.Module,
    example_inputs: Any,
    *,
    layers: int | None = None,
    r: int | Mapping[str, int] = DEFAULT_PATCH,
    exact: bool = False,
    train: str | Sequence[str] | None = None,
    train_affine: bool = False,
    calculus: bool = True,
    winograd: bool = True,
    cache_prefix: bool = False,
    batchnorm: str | Mapping[str, str] = "eval",
    dropout: bool = False,
    sparse: float | Mapping[str, float] | None = None,
    sparse_strategy: str = "step",
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
    the rest; `train` adds layers by name pattern, `train_affine` the batch norms behind trained convolutions. The
    model itself is not changed. `batchnorm` is eval, train or frozen, or {pattern: mode}; `dropout` turns the model's
    dropouts on. Several inputs are a tuple, in `example_inputs` and in every call. `calculus=False` filters as
    published: the same gradients from more memory. `winograd=False` computes every convolution as its plain
    sum: slower, with less scratch memory and a little less rounding. `cache_prefix` adds what `step.open_cache` needs:
    the frozen part of the network is then computed once a sample instead of once an epoch. `debug` makes a slower step
    that checks the memory around every buffer after every kernel, with the same results.

    `sparse` updates, a step, the weights of that share of a trained convolution's input channels only, 0.1 or {pattern:
    share}, and keeps nothing of the others for the backward pass. They are drawn anew every step (`sparse_strategy`
    "step"), every epoch ("epoch": set `step.epoch`), once ("fixed"), or are those with the largest weights ("norm").

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
    r: int | Mapping[str, int] = DEFAULT_PATCH,
    exact: bool = False,
    train: str | Sequence[str] | None = None,
    train_affine: bool = False,
    calculus: bool = True,
    winograd: bool = True,
    cache_prefix: bool = False,
    batchnorm: str | Mapping[str, str] = "eval",
    dropout: bool = False,
    sparse: float | Mapping[str, float] | None = None,
    sparse_strategy: str = "step",
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
    patches = dict(r) if isinstance(r, Mapping) else {"*": r}
    ratios = sparse if isinstance(sparse, Mapping) or sparse is None else {"*": sparse}
    patterns = (train,) if isinstance(train, str) else tuple(train or ())
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
            layers, patches, patterns, exact, batchnorm, compat, train_affine, dropout, ratios, sparse_strategy
        ),
        optimizer=chosen,
        lr=starting_rate(optimizer, chosen, lr),
        fixed_mode=loaded.fixed_mode,
        calculus=calculus,
        winograd=winograd,
        cache_prefix=cache_prefix,
        skeleton=loaded.onnx_skeleton,
    )
    folder = Path(out) if out is not None else Path(f"{loaded.name}_step")
    known = NOTHING_KNOWN if tuning is False else Databases.open(None if tuning is True else Path(tuning))
    return compile_job(job, folder, _machine(target, arch, linker, libc), progress, debug=debug, tuning=known)


def compile_job(
    job: Job,
    out: Path,
    target: Target,
    progress: Callable[[str], None],
    dump: Path | None = None,
    debug: bool = False,
    tuning: Databases = NOTHING_KNOWN,
) -> Path:
    """Analyse and build; returns the artifact's folder. `dump` gets the numbered graphs even if a later stage fails."""
    require_linker(target)
    if target.kind == "cuda":
        _require_cuda(target, debug)
    artifact.check_destination(out)
    dumps = Dumps(dump, job.module.state_dict())
    analysis = analyse(job, dumps.observe, progress, target, tuning)
    folder = artifact.build(analysis, out, progress, dumps.files, debug, dumps.model)
    sys.modules.pop(out.name, None)
    importlib.invalidate_caches()
    return folder


def _require_cuda(target: Target, debug: bool) -> None:
    """Refuse early what could not be built after minutes of analysis."""
    missing = packages.find_missing()
    if missing is not None:
        raise UserError(f"target '{target.name}': NVIDIA's compilers are not installed; {missing}")
    if debug:
        raise UserError(
            f"--debug: guards are for steps on a CPU, and target '{target.name}' has a GPU; use --target native"
        )


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


def _as_input(x: Any) -> Tensor:
    tensor = x if isinstance(x, Tensor) else torch.as_tensor(x)
    if tensor.dtype not in INPUT_TYPES:
        raise UserError(f"example_inputs: type {tensor.dtype}; pass float32, or int64 for indices")
    return tensor.detach().cpu()
