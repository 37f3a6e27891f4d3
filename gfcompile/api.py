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

from gfcompile.codegen.artifact import build, check_destination
from gfcompile.compiler import Job, analyse
from gfcompile.dumps import Dumps
from gfcompile.errors import UserError
from gfcompile.frontend.example import example_input
from gfcompile.frontend.load import LoadedModel, from_module
from gfcompile.frontend.losses import resolve_loss
from gfcompile.optimizers import resolve_optimizer
from gfcompile.plan import DEFAULT_PATCH, Request
from gfcompile.runtime.step import Step as RuntimeStep
from gfcompile.targets import find_target


class CompiledStep(RuntimeStep):
    """The artifact's step, with tensors where PyTorch users expect them."""

    def state_dict(self) -> dict[str, Tensor]:
        """The trained weights under the model's own names: `model.load_state_dict(step.state_dict())`."""
        return {name: torch.from_numpy(array.copy()) for name, array in super().state_dict().items()}


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
    batchnorm: str = "eval",
    compat: str | None = None,
    target: str = "native",
    loss: str | Callable[[Tensor, Tensor], Tensor] = "cross_entropy",
    optimizer: Any = "sgd",
    lr: float = 0.01,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    out: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    debug: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> CompiledStep:
    """Compile `model`'s training step for the shapes of `example_inputs` and load it.

    `layers` trains the last N convolutions and the head; `r` is the patch edge, an int or {pattern: r} with "*" for
    the rest; `train` adds layers by name pattern, `train_affine` the batch norms behind trained convolutions. The
    model itself is not changed. `calculus=False` filters as published: the same gradients from more memory. `debug`
    makes a slower step that checks the memory around every buffer after every kernel, with the same results.
    """
    if not isinstance(model, nn.Module):
        raise UserError(
            f"model: a '{type(model).__name__}' is not an nn.Module; load it first, or use the command line"
        )
    loaded = from_module(model)
    patches = dict(r) if isinstance(r, Mapping) else {"*": r}
    patterns = (train,) if isinstance(train, str) else tuple(train or ())
    job = Job(
        module=loaded.module,
        example=_example(loaded, example_inputs),
        loss=resolve_loss(loss),
        request=Request(layers, patches, patterns, exact, batchnorm, compat, train_affine),
        optimizer=resolve_optimizer(optimizer, momentum, weight_decay),
        lr=float(lr),
        fixed_mode=loaded.fixed_mode,
        calculus=calculus,
    )
    folder = Path(out) if out is not None else Path(f"{loaded.name}_step")
    compile_job(job, folder, target, progress, debug=debug)
    return load(folder, threads)


def compile_job(
    job: Job,
    out: Path,
    target: str,
    progress: Callable[[str], None],
    dump: Path | None = None,
    debug: bool = False,
) -> Path:
    """Analyse and build; returns the artifact's folder. `dump` gets the numbered graphs even if a later stage fails."""
    machine = find_target(target)
    check_destination(out)
    dumps = Dumps(dump)
    analysis = analyse(job, dumps.observe, progress, machine)
    folder = build(analysis, out, progress, dumps.texts, debug)
    sys.modules.pop(out.name, None)
    importlib.invalidate_caches()
    return folder


def load(path: str | os.PathLike[str], threads: int | None = None) -> CompiledStep:
    """Load an artifact's folder."""
    return CompiledStep(path, threads)


def _example(loaded: LoadedModel, example_inputs: Any) -> Tensor:
    given = example_inputs if isinstance(example_inputs, (tuple, list)) else (example_inputs,)
    if len(given) != 1:
        raise UserError(f"example_inputs: {len(given)} inputs given; this version compiles models with one image input")
    (x,) = given
    if isinstance(x, Tensor):
        if x.dtype is not torch.float32:
            raise UserError(f"example_inputs: type {x.dtype}; pass float32")
        return x.detach().cpu()
    return example_input(loaded, tuple(x.shape), None)[0]
