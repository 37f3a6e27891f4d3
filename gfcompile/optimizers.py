"""Optimizer settings: what the compiled step's update does."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gfcompile.errors import UserError


@dataclass(frozen=True)
class SGD:
    """torch.optim.SGD without dampening or Nesterov; the learning rate is an input of the step."""

    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        for name in ("momentum", "weight_decay"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise UserError(f"optimizer: {name} '{value}' must be a finite number, 0 or more")


def resolve_optimizer(spec: Any, momentum: float, weight_decay: float) -> SGD:
    """Accept "sgd", an `SGD`, a mapping of its settings, or a torch.optim.SGD whose settings are read."""
    if isinstance(spec, SGD):
        return spec
    if isinstance(spec, str):
        if spec.lower() != "sgd":
            raise UserError(f"optimizer: '{spec}' is not known; this version has 'sgd'")
        return SGD(momentum, weight_decay)
    if isinstance(spec, Mapping):
        settings = dict(spec)
    elif type(spec).__name__ == "SGD" and hasattr(spec, "defaults"):
        settings = {"name": "sgd", **spec.defaults}
    else:
        raise UserError(f"optimizer: '{type(spec).__name__}' is not known; pass 'sgd' or gfcompile.SGD(momentum=0.9)")
    if str(settings.get("name", "sgd")).lower() != "sgd":
        raise UserError(f"optimizer: '{settings['name']}' is not known; this version has 'sgd'")
    if settings.get("nesterov") or settings.get("dampening") or settings.get("maximize"):
        raise UserError(
            "optimizer: nesterov, dampening and maximize are not in this version; use plain SGD with momentum"
        )
    return SGD(float(settings.get("momentum", momentum)), float(settings.get("weight_decay", weight_decay)))
