"""Losses of a training step: how an output, a target and a weight per sample become one number.

A built-in loss is torch.nn's, with a weight for every sample: padding of a short last batch weighs 0, and the rest then
gives what the short batch alone would. It applies to one tensor of the model's output. A callable of the user's gets
the output whole and returns a scalar, so it ignores the weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gfcompile.errors import UserError
from gfcompile.frontend.foreign import one_line
from gfcompile.frontend.imports import import_attribute
from gfcompile.settings.text import split_settings

Apply = Callable[[Any, Tensor, Tensor], Tensor]


def main_output(output: Any) -> Any:
    """The tensor of a model's output that a built-in loss applies to: the one called out or logits, else the first."""
    if isinstance(output, Mapping):
        output = [*(output[key] for key in ("out", "logits") if key in output), *output.values()]
    if isinstance(output, tuple | list):
        return next((found for part in output if isinstance(found := main_output(part), Tensor)), output)
    return output


def _like_output(output: Any) -> Tensor:
    return torch.zeros_like(_tensor_of(output, "loss"), dtype=torch.float32)


@dataclass(frozen=True)
class Loss:
    """A loss by name; `apply(output, target, sample_weight)` is traceable and returns a scalar.

    `settings` are plain data: with the name, what `resolve_loss` makes the same loss of again.
    """

    name: str
    per_sample: bool  # whether the sample weights take effect
    apply: Apply
    example_target: Callable[[Any], Tensor] = _like_output
    settings: Mapping[str, Any] = field(default_factory=dict)

    def target_like(self, output: Any) -> Tensor:
        """An example of the target that belongs to `output`: its shape and type, every value zero."""
        return self.example_target(output)


def resolve_loss(spec: Any) -> Loss:
    """A loss by name, a mapping with one, a module of torch.nn, or a callable (output, target) -> scalar.

    A name may carry settings, `cross_entropy:label_smoothing=0.1,weight=1/2/0.5`, or be `module:callable`. A
    callable's target looks like the output, float32, unless it has an attribute `target_example(output)`.
    """
    if isinstance(spec, Mapping):
        settings = dict(spec)
        name = settings.pop("name", None)
        if not isinstance(name, str):
            raise UserError(f"loss: a mapping needs a name; write {{'name': 'cross_entropy', ...}}, not {dict(spec)}")
        return _built_in(name, settings) if name in _BUILT_IN or settings else resolve_loss(name)
    if isinstance(spec, str):
        name = spec.partition(":")[0]
        if name in _BUILT_IN:
            return _built_in(*split_settings("loss", spec))
        if ":" not in spec:
            raise _unknown(spec)
        function = import_attribute(spec, "loss")
        if isinstance(function, type) and issubclass(function, nn.Module):
            function = _made_without_arguments(function, spec)  # torch.nn:SmoothL1Loss
        return _from_object(function, spec)
    return _from_object(spec, getattr(spec, "__name__", type(spec).__name__))


def _made_without_arguments(kind: type[nn.Module], spec: str) -> nn.Module:
    try:
        return kind()
    except TypeError as error:
        raise UserError(
            f"loss: '{spec}' cannot be made without arguments ({one_line(error)}); name a function of (output, target)"
        ) from error


def _unknown(name: str) -> UserError:
    return UserError(f"loss: unknown '{name}'; use {', '.join(_BUILT_IN)}, or module:callable")


def _from_object(function: Any, name: str) -> Loss:
    """Modules of torch.nn are read, so that sample weights work; anything else is called."""
    if type(function) in _MODULES:
        built_in, attributes = _MODULES[type(function)]
        settings = {key: getattr(function, key) for key in (*attributes, "reduction")}
        return _built_in(built_in, {key: value for key, value in settings.items() if value is not None})
    if not callable(function):
        raise UserError(f"loss: '{name}' is not callable; give a function of (output, target) that returns a scalar")

    def apply(output: Any, target: Tensor, sample_weight: Tensor) -> Tensor:
        try:
            value = function(output, target)
        except UserError:
            raise
        except (Exception, SystemExit) as error:  # the user's code may raise anything
            raise UserError(
                f"loss: '{name}' fails on (output, target) ({one_line(error)}); give a function of both that returns a"
                " scalar tensor"
            ) from error
        if not isinstance(value, Tensor) or value.dim() != 0:
            got = f"shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise UserError(f"loss: '{name}' returned '{got}'; it must return a scalar tensor, such as losses.mean()")
        return value

    return Loss(name, False, apply, getattr(function, "target_example", _like_output))


def _built_in(name: str, settings: Mapping[str, Any]) -> Loss:
    if name not in _BUILT_IN:
        raise _unknown(name)
    known = _BUILT_IN[name]
    checks = {**known.settings, "reduction": _reduction}
    checked: dict[str, Any] = {}
    for key, value in settings.items():
        if key not in checks:
            raise UserError(f"loss: '{name}' has no setting '{key}'; it has {', '.join(checks)}")
        checked[key] = checks[key](f"loss: {name}: {key}", value)
    total = _total if checked.get("reduction") == "sum" else known.mean
    computed = {key: value for key, value in checked.items() if key != "reduction"}
    apply = partial(_apply, name, known, total, computed)
    plain = {key: value.tolist() if isinstance(value, Tensor) else value for key, value in checked.items()}
    return Loss(name, True, apply, partial(known.example_target, name), plain)


def _apply(
    name: str,
    known: _BuiltIn,
    total: Callable[[Tensor, Tensor, Tensor], Tensor],
    settings: Mapping[str, Any],
    output: Any,
    target: Tensor,
    sample_weight: Tensor,
) -> Tensor:
    tensor = _checked_output(name, output, known.least_rank)
    try:
        losses, importance = known.terms(tensor, target, **settings)
    except RuntimeError as error:  # a weight whose shape does not fit
        raise UserError(f"loss: '{name}' cannot be applied ({one_line(error)}); check its settings") from error
    shape = [-1, *[1] * (losses.dim() - 1)]
    return total(losses, importance, sample_weight.view(shape))


def _weighted_mean(losses: Tensor, importance: Tensor, sample_weight: Tensor) -> Tensor:
    """sum(s*l) / sum(s*importance): with ones for s, torch's mean over what counts. Nothing counts: NaN, as torch."""
    return (losses * sample_weight).sum() / (importance * sample_weight).sum()


def _total(losses: Tensor, importance: Tensor, sample_weight: Tensor) -> Tensor:
    return (losses * sample_weight).sum()


def _mean_of_samples(losses: Tensor, importance: Tensor, sample_weight: Tensor) -> Tensor:
    """Mean over each sample, then weighted mean over the batch."""
    per_sample = losses.flatten(1).mean(1) if losses.dim() > 1 else losses  # [N]
    weights = sample_weight.flatten()
    return (per_sample * weights).sum() / weights.sum()


Terms = tuple[Tensor, Tensor]  # losses, and how much each counts in their mean


def _cross_entropy(
    output: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Terms:
    classes = output.shape[1]
    if weight is not None and weight.shape != (classes,):
        got = "x".join(map(str, weight.shape)) or "one"
        raise UserError(f"loss: 'cross_entropy' has {got} weights for {classes} classes; give one per class")
    losses = F.cross_entropy(
        output, target, weight, ignore_index=ignore_index, reduction="none", label_smoothing=label_smoothing
    )
    counts = target != ignore_index
    importance = counts.to(losses.dtype)
    if weight is not None:
        index = torch.where(counts, target, 0)
        importance = importance * weight.gather(0, index.flatten()).view(index.shape)
    return losses, importance


def _bce_with_logits(
    output: Tensor, target: Tensor, weight: Tensor | None = None, pos_weight: Tensor | None = None
) -> Terms:
    losses = F.binary_cross_entropy_with_logits(output, target, weight, pos_weight=pos_weight, reduction="none")
    return losses, target


def _mse(output: Tensor, target: Tensor) -> Terms:
    return (output - target).square(), target


def _l1(output: Tensor, target: Tensor) -> Terms:
    return (output - target).abs(), target


def _smooth_l1(output: Tensor, target: Tensor, beta: float = 1.0) -> Terms:
    return F.smooth_l1_loss(output, target, beta=beta, reduction="none"), target


def _huber(output: Tensor, target: Tensor, delta: float = 1.0) -> Terms:
    return F.huber_loss(output, target, delta=delta, reduction="none"), target


def _tensor_of(output: Any, name: str) -> Tensor:
    tensor = main_output(output)
    if not isinstance(tensor, Tensor):
        raise UserError(
            f"loss: the model returned a '{type(output).__name__}' without a tensor in front;"
            f" wrap it in a module that returns what '{name}' applies to"
        )
    return tensor


def _checked_output(name: str, output: Any, least_rank: int) -> Tensor:
    tensor = _tensor_of(output, name)
    if tensor.dim() < least_rank:
        wants = {1: "of shape [N, ...]", 2: "of shape [N, classes] or [N, classes, H, W]"}[least_rank]
        raise UserError(
            f"loss: '{name}' needs an output {wants}, not {list(tensor.shape)}; change the model or the loss"
        )
    return tensor


def _class_indices(name: str, output: Any) -> Tensor:
    tensor = _checked_output(name, output, least_rank=2)
    return torch.zeros(tensor.shape[0], *tensor.shape[2:], dtype=torch.int64, device=tensor.device)


def _values_like(name: str, output: Any) -> Tensor:
    return torch.zeros_like(_checked_output(name, output, least_rank=1), dtype=torch.float32)


def _reduction(where: str, value: Any) -> str:
    if value not in ("mean", "sum"):
        raise UserError(f"{where} '{value}' must be mean or sum: a step trains on one number")
    return str(value)


def _number_between(low: float, high: float, words: str) -> Callable[[str, Any], float]:
    def check(where: str, value: Any) -> float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or not low <= value <= high:
            raise UserError(f"{where} '{value}' must be {words}")
        return float(value)

    return check


def _index(where: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not -(2**63) <= value < 2**63:
        raise UserError(f"{where} '{value}' must be a whole number, such as 255")
    return value


def _weights(where: str, value: Any) -> Tensor:
    """A tensor, numbers, or the path of a .npy file."""
    if isinstance(value, str):
        try:
            value = np.load(Path(value), allow_pickle=False)
        except Exception as error:  # numpy reads a header as Python: a damaged file can raise anything
            raise UserError(f"{where} '{value}': is neither numbers joined by / nor a readable .npy file") from error
    try:
        tensor = torch.as_tensor(value, dtype=torch.float32).detach().cpu().clone()
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{where} '{value}' must be numbers, one per class") from error
    if not bool((torch.isfinite(tensor) & (tensor >= 0)).all()):
        raise UserError(f"{where}: every weight must be a finite number, 0 or more")
    return tensor


@dataclass(frozen=True)
class _BuiltIn:
    """`terms(output, target, **settings)` gives the losses of a batch before they are reduced."""

    terms: Callable[..., Terms]
    settings: dict[str, Callable[[str, Any], Any]] = field(default_factory=dict)
    example_target: Callable[[str, Any], Tensor] = _values_like
    mean: Callable[[Tensor, Tensor, Tensor], Tensor] = _mean_of_samples
    least_rank: int = 1


_AMOUNT = _number_between(0.0, math.inf, "a finite number, 0 or more")
_PART = _number_between(0.0, 1.0, "a number from 0 to 1")
_BUILT_IN = {
    "cross_entropy": _BuiltIn(
        _cross_entropy,
        {"weight": _weights, "ignore_index": _index, "label_smoothing": _PART},
        _class_indices,
        _weighted_mean,
        least_rank=2,
    ),
    "bce_with_logits": _BuiltIn(_bce_with_logits, {"weight": _weights, "pos_weight": _weights}),
    "mse": _BuiltIn(_mse),
    "l1": _BuiltIn(_l1),
    "smooth_l1": _BuiltIn(_smooth_l1, {"beta": _AMOUNT}),
    "huber": _BuiltIn(_huber, {"delta": _AMOUNT}),
}
_MODULES: dict[type[nn.Module], tuple[str, tuple[str, ...]]] = {
    nn.CrossEntropyLoss: ("cross_entropy", ("weight", "ignore_index", "label_smoothing")),
    nn.BCEWithLogitsLoss: ("bce_with_logits", ("weight", "pos_weight")),
    nn.MSELoss: ("mse", ()),
    nn.L1Loss: ("l1", ()),
    nn.SmoothL1Loss: ("smooth_l1", ("beta",)),
    nn.HuberLoss: ("huber", ("delta",)),
}
