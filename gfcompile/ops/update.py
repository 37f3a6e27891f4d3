"""Optimizer updates: torch.optim's formulas, each element from its own old value.

A gradient may be one value for all taps of a kernel, as filtering gives it. An update returns the new weight and, in
the order given, its new state. Below, `rate` is lr * lr_factor, and d is the gradient with its decay.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.library import custom_op


@custom_op("gf::sgd_update_plain", mutates_args=())
def sgd_update_plain(w: Tensor, g: Tensor, lr: Tensor, weight_decay: float, lr_factor: float) -> Tensor:
    """w' = w - rate*(g + weight_decay*w): SGD without momentum keeps no state."""
    return w - lr * lr_factor * (g + weight_decay * w)


@sgd_update_plain.register_fake
def _(w: Tensor, g: Tensor, lr: Tensor, weight_decay: float, lr_factor: float) -> Tensor:
    return torch.empty_like(w)


@custom_op("gf::sgd_update", mutates_args=())
def sgd_update(
    w: Tensor,
    v: Tensor,
    g: Tensor,
    lr: Tensor,
    gain: Tensor | None,
    momentum: float,
    weight_decay: float,
    nesterov: bool,
    lr_factor: float,
) -> tuple[Tensor, Tensor]:
    """v' = momentum*v + gain*d;  w' = w - rate*v', or with Nesterov w - rate*(d + momentum*v').

    d = g + weight_decay*w; no gain is a gain of 1.
    """
    d = g + weight_decay * w
    velocity = momentum * v + (d if gain is None else gain * d)
    return w - lr * lr_factor * (d + momentum * velocity if nesterov else velocity), velocity


@sgd_update.register_fake
def _(
    w: Tensor,
    v: Tensor,
    g: Tensor,
    lr: Tensor,
    gain: Tensor | None,
    momentum: float,
    weight_decay: float,
    nesterov: bool,
    lr_factor: float,
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(w), torch.empty_like(v)


@custom_op("gf::sgd_gain", mutates_args=())
def sgd_gain(count: Tensor, dampening: float) -> Tensor:
    """How much of the gradient enters the velocity: all of it in step 1, later 1 - dampening."""
    return torch.where(count == 1, torch.ones_like(count), torch.full_like(count, 1 - dampening))


@sgd_gain.register_fake
def _(count: Tensor, dampening: float) -> Tensor:
    return torch.empty_like(count)


@custom_op("gf::adam_update", mutates_args=())
def adam_update(
    w: Tensor,
    state: list[Tensor],
    g: Tensor,
    lr: Tensor,
    correction1: Tensor,
    correction2: Tensor,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    decoupled: bool,
    lr_factor: float,
) -> list[Tensor]:
    """m' = m + (1-beta1)*(d - m);  v' = beta2*v + (1-beta2)*d*d;  w' = w - rate/c1 * m'/(sqrt(v'/c2) + eps).

    d = g + weight_decay*w; decoupled, d = g and the decay acts on the weight: w becomes w*(1 - rate*weight_decay). With
    a third state tensor (amsgrad) the largest v' so far takes the place of v'.
    """
    m, v, *largest = state
    rate = lr * lr_factor
    d = g if decoupled else g + weight_decay * w
    new_m = m + (1 - beta1) * (d - m)
    new_v = beta2 * v + (1 - beta2) * d * d
    new_largest = [torch.maximum(old, new_v) for old in largest]
    scale = (new_largest or [new_v])[0].sqrt() / correction2.sqrt() + eps
    kept = w * (1 - rate * weight_decay) if decoupled else w
    return [kept - rate / correction1 * (new_m / scale), new_m, new_v, *new_largest]


@adam_update.register_fake
def _(
    w: Tensor,
    state: list[Tensor],
    g: Tensor,
    lr: Tensor,
    correction1: Tensor,
    correction2: Tensor,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    decoupled: bool,
    lr_factor: float,
) -> list[Tensor]:
    return [torch.empty_like(tensor) for tensor in (w, *state)]


@custom_op("gf::bias_correction", mutates_args=())
def bias_correction(count: Tensor, beta: float) -> Tensor:
    """1 - beta^count, without the cancellation of that difference."""
    return -torch.expm1(count * math.log(beta)) if beta else torch.ones_like(count)


@bias_correction.register_fake
def _(count: Tensor, beta: float) -> Tensor:
    return torch.empty_like(count)


@custom_op("gf::rmsprop_update", mutates_args=())
def rmsprop_update(
    w: Tensor,
    state: list[Tensor],
    g: Tensor,
    lr: Tensor,
    alpha: float,
    eps: float,
    weight_decay: float,
    momentum: float,
    centered: bool,
    lr_factor: float,
) -> list[Tensor]:
    """s' = alpha*s + (1-alpha)*d*d;  w' = w - rate*b', where b' = momentum*b + d/(sqrt(s') + eps).

    d = g + weight_decay*w. Centered, a' = a + (1-alpha)*(d - a) and s' - a'^2 takes the place of s' under the root
    (at least 0, which rounding can miss). The state is s, a if centered, b if there is momentum.
    """
    s, *rest = state
    d = g + weight_decay * w
    new_s = alpha * s + (1 - alpha) * d * d
    new = [new_s]
    variance = new_s
    if centered:
        new.append(rest[0] + (1 - alpha) * (d - rest[0]))
        variance = (new_s - new[-1] * new[-1]).clamp(min=0)
    move = d / (variance.sqrt() + eps)
    if momentum > 0:
        move = momentum * rest[-1] + move
        new.append(move)
    changed = w - lr * lr_factor * move
    return [changed, *new]


@rmsprop_update.register_fake
def _(
    w: Tensor,
    state: list[Tensor],
    g: Tensor,
    lr: Tensor,
    alpha: float,
    eps: float,
    weight_decay: float,
    momentum: float,
    centered: bool,
    lr_factor: float,
) -> list[Tensor]:
    return [torch.empty_like(tensor) for tensor in (w, *state)]


@custom_op("gf::square_sum", mutates_args=())
def square_sum(g: Tensor, copies: int) -> Tensor:
    """copies * sum(g^2): the squared norm of a gradient whose every value stands for that many taps."""
    return copies * g.square().sum()


@square_sum.register_fake
def _(g: Tensor, copies: int) -> Tensor:
    return g.new_empty(())


@custom_op("gf::clip_coefficient", mutates_args=())
def clip_coefficient(square_sums: list[Tensor], limit: float) -> Tensor:
    """limit / (norm + 1e-6), at most 1: what torch.nn.utils.clip_grad_norm_ multiplies gradients with."""
    norm = torch.stack(square_sums).sum().sqrt()
    return (limit / (norm + CLIP_EPS)).clamp(max=1.0)


@clip_coefficient.register_fake
def _(square_sums: list[Tensor], limit: float) -> Tensor:
    return torch.empty_like(square_sums[0])


CLIP_EPS = 1e-6
