"""Optimizer updates, each element from its own old value. The gradient may be one value for all taps of a kernel."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.library import custom_op


@custom_op("gf::sgd_update", mutates_args=())
def sgd_update(
    w: Tensor, v: Tensor, g: Tensor, lr: Tensor, momentum: float, weight_decay: float
) -> tuple[Tensor, Tensor]:
    """v' = momentum*v + g + weight_decay*w;  w' = w - lr*v'  (torch.optim.SGD without dampening or Nesterov)."""
    velocity = momentum * v + (g + weight_decay * w)
    return w - lr * velocity, velocity


@sgd_update.register_fake
def _(w: Tensor, v: Tensor, g: Tensor, lr: Tensor, momentum: float, weight_decay: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(w), torch.empty_like(v)


@custom_op("gf::sgd_update_plain", mutates_args=())
def sgd_update_plain(w: Tensor, g: Tensor, lr: Tensor, weight_decay: float) -> Tensor:
    """w' = w - lr*(g + weight_decay*w): SGD without momentum keeps no state."""
    return w - lr * (g + weight_decay * w)


@sgd_update_plain.register_fake
def _(w: Tensor, g: Tensor, lr: Tensor, weight_decay: float) -> Tensor:
    return torch.empty_like(w)
