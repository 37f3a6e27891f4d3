"""Losses of a training step: how an output, a target and a weight per sample become one number.

A built-in loss is a mean over each sample, then a weighted mean over the batch, so a short last batch can be padded
with samples of weight 0. A callable of the user's returns a scalar already, so it ignores the weights.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gfcompile.errors import UserError
from gfcompile.frontend.load import import_attribute


def _like_output(output: Tensor) -> Tensor:
    return torch.zeros_like(output, dtype=torch.float32)


@dataclass(frozen=True)
class Loss:
    """A loss by name; `apply(output, target, sample_weight)` is traceable and returns a scalar."""

    name: str
    per_sample: bool  # whether the sample weights take effect
    apply: Callable[[Tensor, Tensor, Tensor], Tensor]
    example_target: Callable[[Tensor], Tensor] = _like_output

    def target_like(self, output: Tensor) -> Tensor:
        """An example of the target that belongs to `output`: its shape and type, every value zero."""
        return self.example_target(_checked_output(self.name, output, least_rank=0))


def resolve_loss(spec: str | Callable[[Tensor, Tensor], Tensor]) -> Loss:
    """The loss of this name, at `module:callable`, or a callable (output, target) -> scalar.

    A callable's target looks like the output, float32, unless the callable has an attribute `target_example(output)`.
    """
    if not isinstance(spec, str):
        return _from_callable(spec, getattr(spec, "__name__", type(spec).__name__))
    if spec in _LOSSES:
        return _LOSSES[spec]
    if ":" not in spec:
        raise UserError(f"loss: unknown '{spec}'; use {', '.join(_LOSSES)}, or module:callable")
    function = import_attribute(spec, "loss")
    if isinstance(function, type) and issubclass(function, nn.Module):
        function = function()  # torch.nn:SmoothL1Loss
    return _from_callable(function, spec)


def _cross_entropy(output: Tensor, target: Tensor, sample_weight: Tensor) -> Tensor:
    _checked_output("cross_entropy", output, least_rank=2)  # [N, C, ...]
    return _weighted_mean(F.cross_entropy(output, target, reduction="none"), sample_weight)


def _class_indices(output: Tensor) -> Tensor:
    _checked_output("cross_entropy", output, least_rank=2)
    return torch.zeros(output.shape[0], *output.shape[2:], dtype=torch.int64, device=output.device)


def _mse(output: Tensor, target: Tensor, sample_weight: Tensor) -> Tensor:
    _checked_output("mse", output, least_rank=1)
    return _weighted_mean((output - target).square(), sample_weight)


def _weighted_mean(losses: Tensor, sample_weight: Tensor) -> Tensor:
    per_sample = losses.flatten(1).mean(1) if losses.dim() > 1 else losses  # [N]
    return (per_sample * sample_weight).sum() / sample_weight.sum()


def _from_callable(function: Callable[[Tensor, Tensor], Tensor], name: str) -> Loss:
    if not callable(function):
        raise UserError(f"loss: '{name}' is not callable; give a function of (output, target) that returns a scalar")

    def apply(output: Tensor, target: Tensor, sample_weight: Tensor) -> Tensor:
        value = function(output, target)
        if not isinstance(value, Tensor) or value.dim() != 0:
            got = f"shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise UserError(f"loss: '{name}' returned '{got}'; it must return a scalar tensor, such as losses.mean()")
        return value

    return Loss(name, False, apply, getattr(function, "target_example", _like_output))


def _checked_output(name: str, output: object, least_rank: int) -> Tensor:
    if not isinstance(output, Tensor):
        raise UserError(
            f"loss: the model returned a '{type(output).__name__}', not a tensor;"
            f" wrap it in a module that returns the one output '{name}' applies to"
        )
    if output.dim() < least_rank:
        wants = {1: "of shape [N, ...]", 2: "of shape [N, classes] or [N, classes, H, W]"}[least_rank]
        raise UserError(
            f"loss: '{name}' needs an output {wants}, not {list(output.shape)}; change the model or the loss"
        )
    return output


_LOSSES = {
    "cross_entropy": Loss("cross_entropy", True, _cross_entropy, _class_indices),
    "mse": Loss("mse", True, _mse),
}
