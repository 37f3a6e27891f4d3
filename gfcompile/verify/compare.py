"""The compiled step against PyTorch eager: logits, loss, gradients, and one update.

Gradients are compared with the traced step after the filter pass, run in plain PyTorch; those of layers after the
last filtered one are untouched by filtering and are compared with autograd itself. The error of a check is the middle
one over the batches: a ReLU whose input is within rounding of zero may fall to the other side in one batch; a wrong
kernel is wrong in all.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from gfcompile.errors import UserError
from gfcompile.frontend.batch_file import HOW_TO_SAVE, read_arrays
from gfcompile.frontend.losses import Loss
from gfcompile.frontend.survey import survey
from gfcompile.frontend.trace import (
    Inputs,
    trace_forward,
    trace_training,
    working_copy,
)
from gfcompile.geometry.channel_draws import Draw
from gfcompile.ops import gf
from gfcompile.optimizers import Optimizer, resolve_optimizer
from gfcompile.passes import pipeline
from gfcompile.plan import Layer, Plan, PlannedLayer
from gfcompile.progress import Progress, silent
from gfcompile.runtime.step import Step as RuntimeStep
from gfcompile.step import Role
from gfcompile.verify.eager import random_input, random_target, run_eagerly

BATCHES = 3
# float32 rounding through a whole network, relative in the 2-norm; batch statistics divide by small numbers
TOLERANCES = {"eval": 1e-4, "train": 1e-3}
NEGLIGIBLE = 1e-3  # of the largest gradient: smaller ones (a bias before batch norm has none at all) are measured by it
VISIBLE_RATE = 1.0  # the learning rate of the checked update: one that a float32 weight does not round away
ROUNDED_AWAY = 1e-3  # a change below this part of its weight is compared with the weight: float32 keeps 1e-7 of that
TORCH_OPTIMIZERS = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
}

Batch = tuple[Inputs, Tensor]
Tensors = Mapping[str, Any]


@dataclass(frozen=True)
class Check:
    """One comparison: `against` says what the truth is."""

    what: str
    against: str
    error: float
    tolerance: float

    @property
    def passed(self) -> bool:
        """Whether the error is within the tolerance."""
        return self.error <= self.tolerance  # a NaN fails


def verify(
    module: nn.Module,
    loss: Loss,
    artifact: Path,
    data: Path | None = None,
    progress: Progress = silent,
) -> list[Check]:
    """Compare the artifact with the model that it was compiled from."""
    with RuntimeStep(artifact) as probe:
        manifest = probe.manifest
        differing = _differing_weights(module, probe.state_dict())
    if differing:
        raise UserError(f"{artifact}: was compiled from other weights: '{differing}' is not the model's; compile again")
    batches = list(_batches(manifest, data))
    progress("tracing the eager reference")
    reference = Reference(module, loss, manifest, batches[0])
    errors: dict[tuple[str, str], list[float]] = {}
    for number, (x, y) in enumerate(batches, 1):
        progress(f"comparing batch {number}/{len(batches)}")
        with RuntimeStep(artifact) as step:  # a fresh one per batch: training changes it
            for key, error in reference.compare(step, x, y):
                errors.setdefault(key, []).append(error)
    tolerance = TOLERANCES[manifest["batchnorm"]]
    return [Check(what, against, _middle(found), tolerance) for (what, against), found in errors.items()]


class Reference:
    """The model in plain PyTorch: as it is, and as the step that the filter pass leaves."""

    def __init__(self, module: nn.Module, loss: Loss, manifest: dict[str, Any], batch: Batch) -> None:
        self.loss, self.manifest = loss, manifest
        self.module = working_copy(module)
        layers = survey(trace_forward(self.module, batch[0]), self.module)
        self.plan = plan_of(manifest, layers)
        self.groups = {layer.name: layer.geometry.groups for layer in layers if layer.geometry is not None}
        self.drawn = {layer.kernel: layer.name for layer in self.plan.sparse}
        filtered = [index for index, layer in enumerate(layers) if layer.name in manifest["filtered_layers"]]
        last = filtered[-1] if filtered else -1
        self.untouched = {parameter for layer in layers[last + 1 :] for parameter in layer.parameters}
        traced = trace_training(working_copy(module), *batch, loss, self.plan)
        names = [rewrite.name for rewrite in pipeline.FILTERING]
        self.filtered = pipeline.run(traced, pipeline.FILTERING[: names.index("draw_channels") + 1])

    def compare(self, step: RuntimeStep, x: Inputs, y: Tensor) -> Iterator[tuple[tuple[str, str], float]]:
        """Yield ((what, against what), relative error); trains `step` once, at the end."""
        with torch.no_grad():
            returned = _tensors_in(working_copy(self.module)(*_copies(x)))
        for index, (found, wanted_output) in enumerate(zip(_tensors_in(step.predict(x)), returned, strict=True)):
            which = f" [{index}]" if len(returned) > 1 else ""
            yield (f"predict{which}", "eager model"), relative_error(found, wanted_output)
        channels = {layer: torch.from_numpy(drawn) for layer, drawn in step.channels.items()}
        outputs = run_eagerly(self.filtered, x, y, channels=channels)
        if self.plan.dropout:  # PyTorch draws other numbers: the graph after filter is the only peer
            exact: dict[str, np.ndarray] = {}
            exact_loss = float(next(t for value, t in outputs.items() if value.role is Role.LOSS))
        else:
            exact, exact_loss = self._autograd(x, y)
        wanted = {value.name: tensor.numpy() for value, tensor in outputs.items() if value.role is Role.GRADIENT}
        gradients = step.gradients(x, y, seed=0)
        floor = NEGLIGIBLE * max((float(np.linalg.norm(value)) for value in wanted.values()), default=0.0)
        for name, gradient in gradients.items():
            yield (f"gradient {name}", "eager graph after filter"), relative_error(gradient, wanted[name], floor)
            if name in self.untouched and name in exact:
                whole = np.where(self._drawn(name, channels, gradient.shape), exact[name], 0)
                yield (f"gradient {name}", "autograd"), relative_error(gradient, whole, floor)
        before = step.state_dict()
        yield ("loss", "eager model"), relative_error(step.train(x, y, lr=VISIBLE_RATE, seed=0), exact_loss)
        after = step.state_dict()
        for name, expected in self._updated(before, gradients).items():
            old, new = (np.asarray(state[name], dtype=np.float64) for state in (before, after))
            expected = np.where(self._drawn(name, channels, old.shape), expected, old)
            floor = ROUNDED_AWAY * float(np.linalg.norm(old))
            yield (f"update of {name}", "torch.optim"), relative_error(new - old, expected - old, floor)
        for value, tensor in outputs.items():
            if value.role is Role.BUFFER:  # running statistics
                yield (f"update of {value.name}", "eager graph after filter"), relative_error(after[value.name], tensor)

    def _drawn(self, parameter: str, channels: Mapping[str, Tensor], shape: tuple[int, ...]) -> np.ndarray:
        """Where a parameter is updated: everywhere but in kernels of which channels are drawn."""
        layer = self.drawn.get(parameter)
        if layer is None:
            return np.array(True)
        drawn, groups = channels[layer], self.groups[layer]
        ones = torch.ones(Draw.of(shape, groups, len(drawn)).drawn_shape(shape))
        return gf.spread_weights(ones, drawn, list(shape), groups).numpy() > 0

    def _updated(self, weights: Tensors, gradients: Tensors) -> dict[str, np.ndarray]:
        """The trained weights after one step of torch.optim, in float64, on gradients that were compared already.

        An adaptive optimizer makes a whole step of a gradient that is nothing but rounding: those are left out.
        """
        optimizer = optimizer_of(self.manifest)
        parameters = {name: nn.Parameter(torch.tensor(np.asarray(weights[name], np.float64))) for name in gradients}
        for name, parameter in parameters.items():
            parameter.grad = torch.tensor(np.asarray(gradients[name], np.float64))
        sizes = {name: float(np.linalg.norm(gradient)) for name, gradient in gradients.items()}
        update(optimizer, parameters, VISIBLE_RATE)
        least = NEGLIGIBLE * max(sizes.values(), default=0.0) if optimizer.is_adaptive else -1.0
        return {name: parameter.detach().numpy() for name, parameter in parameters.items() if sizes[name] > least}

    def _autograd(self, x: Inputs, y: Tensor) -> tuple[dict[str, np.ndarray], float]:
        module = working_copy(self.module)
        for name, part in module.named_modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm):
                part.train(self.plan.batchnorm_of(name) == "train")
        parameters = dict(module.named_parameters(remove_duplicate=False))
        names = sorted(self.plan.trained_parameters)
        value = self.loss.apply(module(*_copies(x)), y.clone(), torch.ones(x[0].shape[0]))
        gradients = torch.autograd.grad(value, [parameters[name] for name in names], allow_unused=True)
        pairs = zip(names, gradients, strict=True)
        return {name: grad.numpy() for name, grad in pairs if grad is not None}, float(value.detach())


def _copies(x: Inputs) -> Inputs:
    """For a model that may change what it is given."""
    return tuple(each.clone() for each in x)


def _tensors_in(output: object) -> list[Tensor | np.ndarray]:
    """A model may return numbers and None beside them; a step does not."""
    return [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor | np.ndarray)]


def optimizer_of(manifest: dict[str, Any]) -> Optimizer:
    """The optimizer that an artifact was compiled with."""
    return resolve_optimizer({key: value for key, value in manifest["optimizer"].items() if key != "state_bytes"})


def update(optimizer: Optimizer, parameters: Mapping[str, nn.Parameter], lr: float) -> None:
    """Clip the parameters' gradients and take one step with torch.optim's own optimizer."""
    if optimizer.clip_norm is not None:
        nn.utils.clip_grad_norm_(parameters.values(), optimizer.clip_norm)
    if optimizer.clip_value is not None:
        nn.utils.clip_grad_value_(parameters.values(), optimizer.clip_value)
    groups = []
    for name, parameter in parameters.items():
        own = optimizer.of(name)
        settings = {key: getattr(own, key) for key in own.own_settings()}
        groups.append({"params": [parameter], "lr": lr * own.lr_factor, **settings})
    TORCH_OPTIMIZERS[optimizer.name](groups).step()


def plan_of(manifest: dict[str, Any], layers: Sequence[Layer]) -> Plan:
    """The plan that an artifact of these layers was compiled with; refused layers come back as exact ones."""
    refused = {layer for layer, _ in manifest["refusals"]}
    kernels = {layer.name: layer.kernel for layer in layers}
    trained = tuple(
        PlannedLayer(
            row["layer"],
            "conv",
            row["role"],
            None if row["layer"] in refused else row["r"],
            None,
            row["channels"],
            kernels[row["layer"]],
        )
        for row in manifest["plan"]["trained"]
    )
    return Plan(
        trained,
        frozenset(manifest["gradients"]),
        manifest["plan"]["exact"],
        manifest["norms"],
        manifest["plan"]["compat"] == "reference",
        dropout=manifest["dropout"],
    )


def relative_error(found: Any, expected: Any, floor: float = 0.0) -> float:
    """||found - expected|| / ||expected|| in float64; `floor` bounds the denominator from below."""
    a, b = (np.asarray(value, dtype=np.float64) for value in (found, expected))
    if a.shape != b.shape:
        return float("inf")
    difference, size = float(np.linalg.norm(a - b)), max(float(np.linalg.norm(b)), floor)
    return difference / size if size else difference


def _middle(errors: list[float]) -> float:
    return math.nan if any(map(math.isnan, errors)) else statistics.median(errors)


def _batches(manifest: dict[str, Any], data: Path | None) -> Iterator[Batch]:
    specs = [spec for spec in manifest["inputs"] if spec["role"] == "input"]
    target = next(spec for spec in manifest["inputs"] if spec["role"] == "target")
    if data is not None:
        yield from _batches_from_file(data, specs, target, manifest["batch"])
        return
    for seed in range(BATCHES):
        generator = torch.Generator().manual_seed(seed)
        x = tuple(random_input(spec, generator) for spec in specs)
        yield x, random_target(manifest, target, generator)


def _batches_from_file(path: Path, specs: list[dict[str, Any]], target: dict[str, Any], batch: int) -> Iterator[Batch]:
    """Several inputs are arrays x0, x1, ... there."""
    arrays = read_arrays(path)
    wanted = {**{spec["name"]: spec for spec in specs}, "y": target}
    for name, spec in wanted.items():
        shape = spec["shape"]
        if name not in arrays:
            raise UserError(f"--data {path}: has no array '{name}'; {HOW_TO_SAVE}")
        if list(arrays[name].shape[1:]) != shape[1:]:
            got = "x".join(map(str, arrays[name].shape))
            raise UserError(f"--data {path}: '{name}' is {got}; the step takes Nx{'x'.join(map(str, shape[1:]))}")
    samples = min(len(arrays[name]) for name in wanted)
    if samples < batch:
        raise UserError(f"--data {path}: {samples} samples; give at least the step's batch of {batch}")
    for index in range(samples // batch):
        part = slice(index * batch, (index + 1) * batch)
        *x, y = (
            torch.from_numpy(np.ascontiguousarray(arrays[name][part], dtype=spec["dtype"]))
            for name, spec in wanted.items()
        )
        yield tuple(x), y


def _differing_weights(module: nn.Module, state: Tensors) -> str | None:
    own = module.state_dict()
    if list(own) != list(state):
        return next(iter(set(own) ^ set(state)), "the order of its tensors")
    return next((name for name in own if not np.array_equal(own[name].cpu().numpy(), np.asarray(state[name]))), None)
