"""Optimizer settings under torch.optim's names: what the compiled step's update does.

The learning rate is an input of the step, so schedules live outside; a group of parameters may have a constant factor
of it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

from gfcompile.errors import UserError
from gfcompile.plan import matches
from gfcompile.settings.text import FLOAT32_MOST

if TYPE_CHECKING:
    from torch import Tensor

_OURS = ("lr_factor", "groups", "clip_norm", "clip_value")  # settings that no torch.optim has


@dataclass(frozen=True, kw_only=True)
class Optimizer(ABC):
    """What all have in common.

    `groups` maps a pattern of parameter names to settings of their own: {"*.bias": {"weight_decay": 0.0}}; of several
    that match, the last says. `lr_factor` multiplies the learning rate. Gradients are clipped by their common norm
    (torch.nn.utils.clip_grad_norm_), then by value; neither changes what `gradients()` returns.
    """

    name: ClassVar[str]
    default_lr: ClassVar[float] = 0.01
    is_adaptive: ClassVar[bool] = True  # divides by the gradient's own size
    maximize: bool = False
    lr_factor: float = 1.0
    groups: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    clip_norm: float | None = None
    clip_value: float | None = None

    def __post_init__(self) -> None:
        for each in fields(self):
            if each.name in _REQUIREMENTS:
                holds, words = _REQUIREMENTS[each.name]
                value = getattr(self, each.name)
                if not holds(value):
                    raise UserError(f"optimizer: {each.name} '{value}' must be {words}")
        for pattern, settings in self.groups.items():
            self._check_group(pattern, settings)

    def _check_group(self, pattern: str, settings: Mapping[str, Any]) -> None:
        where = f"optimizer: group '{pattern}'"
        if "lr" in settings:
            raise UserError(f"{where}: 'lr' is an input of the step; write lr_factor, which multiplies it")
        self.check_names(settings, where, of_group=True)
        try:
            replace(self, groups={}, **settings)
        except UserError as error:
            raise UserError(f"{where}: {str(error).removeprefix('optimizer: ')}") from error

    @classmethod
    def check_names(cls, settings: Iterable[str], where: str = "optimizer", of_group: bool = False) -> None:
        """Refuse a setting that this optimizer does not have."""
        own = cls.own_settings()
        known = [*own, "lr_factor"] if of_group else [*own, *_OURS]
        for name in settings:
            if name not in known:
                listing = ", ".join(known if of_group else own)
                raise UserError(f"{where}: '{cls.name}' has no setting '{name}'; it has {listing}")

    @classmethod
    def own_settings(cls) -> list[str]:
        """The names of the settings that torch.optim's one has too."""
        names = [each.name for each in fields(cls) if each.name not in _OURS]
        return sorted(names, key=lambda name: name == "maximize")  # all have it, so it comes last

    def of(self, parameter: str) -> Optimizer:
        """The settings that hold for one parameter."""
        own: dict[str, Any] = {}
        for pattern, settings in self.groups.items():
            if matches(parameter, pattern):
                own |= settings
        return replace(self, groups={}, **own)

    def check_groups(self, parameters: Iterable[str]) -> None:
        """Refuse a group for none of the model's parameters: it would do nothing, silently."""
        names = list(parameters)
        for pattern in self.groups:
            if not any(matches(name, pattern) for name in names):
                raise UserError(
                    f"optimizer: group '{pattern}': no parameter of the model has that name; "
                    f"names are like '{names[-1]}', patterns like '*.bias'"
                )

    @property
    @abstractmethod
    def state_names(self) -> tuple[str, ...]:
        """The tensors it keeps for a parameter, under torch.optim's names."""

    @property
    def counts_steps(self) -> bool:
        """Whether the update depends on how many went before."""
        return False

    def as_mapping(self) -> dict[str, Any]:
        """What `resolve_optimizer` reads back; plain data for the manifest."""
        own = {name: getattr(self, name) for name in (*self.own_settings(), *_OURS)}
        return {"name": self.name, **own, "groups": {key: dict(value) for key, value in self.groups.items()}}


@dataclass(frozen=True)
class SGD(Optimizer):
    """torch.optim.SGD."""

    name: ClassVar[str] = "sgd"
    is_adaptive: ClassVar[bool] = False
    momentum: float = 0.0
    weight_decay: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            raise UserError("optimizer: nesterov needs momentum and no dampening; set momentum=0.9, dampening=0")

    @property
    def state_names(self) -> tuple[str, ...]:
        return ("momentum_buffer",) if self.momentum else ()

    @property
    def counts_steps(self) -> bool:
        return bool(self.momentum and self.dampening)  # the first step is not dampened


@dataclass(frozen=True)
class Adam(Optimizer):
    """torch.optim.Adam."""

    name: ClassVar[str] = "adam"
    default_lr: ClassVar[float] = 0.001
    is_decoupled: ClassVar[bool] = False
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    amsgrad: bool = False

    @property
    def state_names(self) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq", "max_exp_avg_sq") if self.amsgrad else ("exp_avg", "exp_avg_sq")

    @property
    def counts_steps(self) -> bool:
        return True


@dataclass(frozen=True)
class AdamW(Adam):
    """torch.optim.AdamW: weights decay by themselves, not through the gradient."""

    name: ClassVar[str] = "adamw"
    is_decoupled: ClassVar[bool] = True
    weight_decay: float = 0.01


@dataclass(frozen=True)
class RMSprop(Optimizer):
    """torch.optim.RMSprop."""

    name: ClassVar[str] = "rmsprop"
    alpha: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0
    centered: bool = False

    @property
    def state_names(self) -> tuple[str, ...]:
        optional = [("grad_avg", self.centered), ("momentum_buffer", self.momentum > 0)]
        return ("square_avg", *(name for name, is_kept in optional if is_kept))


OPTIMIZERS: dict[str, type[Optimizer]] = {kind.name: kind for kind in (SGD, Adam, AdamW, RMSprop)}


def resolve_optimizer(
    spec: Any, settings: Mapping[str, Any] | None = None, parameters: Iterable[tuple[str, Tensor]] = ()
) -> Optimizer:
    """Accept a name, a mapping with one, an `Optimizer`, or a torch.optim instance over these `parameters`.

    `settings` complete the first two. Groups of a torch.optim instance become groups by name; a trained parameter that
    is in none of them takes the settings of the first: the plan says what is trained, the optimizer how.
    """
    given = {name: value for name, value in (settings or {}).items() if value is not None}
    if isinstance(spec, str | Mapping):
        own = {"name": spec} if isinstance(spec, str) else dict(spec)
        kind = _kind(own.pop("name", "sgd"))
        own.pop("lr", None)
        _refuse_twice(own.keys() & given.keys())
        return _make(kind, {**own, **given})
    if isinstance(spec, Optimizer):
        found = spec
    elif _is_torch(spec):
        found = _from_torch(spec, parameters)
    else:
        raise UserError(
            f"optimizer: a '{type(spec).__name__}' is not known; "
            f"use {', '.join(OPTIMIZERS)}, gfcompile.SGD(momentum=0.9), or a torch.optim one of these"
        )
    found.check_names(given)
    _refuse_twice({name for name in given if name in found.own_settings() or getattr(found, name)})
    return replace(found, **given)


def starting_rate(spec: Any, optimizer: Optimizer, lr: float | None = None) -> float:
    """The learning rate that was asked for, else the one in `spec`, else the optimizer's usual one."""
    if lr is None and isinstance(spec, Mapping):
        lr = spec.get("lr")
    elif lr is None and _is_torch(spec):
        lr = spec.param_groups[0]["lr"]
    if lr is None:
        return optimizer.default_lr
    try:
        rate = float(lr)
    except (TypeError, ValueError) as error:
        raise UserError(f"lr '{lr}': is no number; give one, as in 0.01") from error
    if not 0 <= rate <= FLOAT32_MOST:
        raise UserError(f"lr '{lr}': must be a number of 0 or more that a float32 holds, 3.4e38 at most")
    return rate


def _kind(name: Any) -> type[Optimizer]:
    kind = OPTIMIZERS.get(str(name).lower())
    if kind is None:
        raise UserError(f"optimizer: '{name}' is not known; use {', '.join(OPTIMIZERS)}")
    return kind


def _refuse_twice(names: Iterable[str]) -> None:
    for name in sorted(names):
        raise UserError(f"optimizer: {name} is given twice, by itself and in the optimizer; give it once")


def _make(kind: type[Optimizer], settings: Mapping[str, Any]) -> Optimizer:
    kind.check_names(settings)
    return kind(**{name: _tupled(value) for name, value in settings.items()})


def _tupled(value: Any) -> Any:
    """JSON has no tuples."""
    if isinstance(value, Mapping):
        return {name: _tupled(part) for name, part in value.items()}
    return tuple(value) if isinstance(value, list) else value


def _is_torch(spec: Any) -> bool:
    return type(spec).__module__.startswith("torch.optim.") and type(spec).__name__.lower() in OPTIMIZERS


def _from_torch(spec: Any, parameters: Iterable[tuple[str, Tensor]]) -> Optimizer:
    kind_name = type(spec).__name__
    if spec.state:
        raise UserError(
            f"optimizer: this torch.optim.{kind_name} has taken steps; its state is not carried over, so pass a new one"
        )
    names: dict[int, list[str]] = {}
    for name, parameter in parameters:
        names.setdefault(id(parameter), []).append(name)
    kind, rate = _kind(kind_name), float(spec.param_groups[0]["lr"])
    groups: dict[str, dict[str, Any]] = {}
    for group in spec.param_groups:
        settings = _group_settings(kind, group, rate)
        for parameter in group["params"]:
            if id(parameter) not in names:
                raise UserError(
                    f"optimizer: this torch.optim.{kind_name} holds a parameter of shape {list(parameter.shape)} "
                    "that is not the model's; make it over model.parameters()"
                )
            groups |= dict.fromkeys(names[id(parameter)], settings)
    first = _group_settings(kind, spec.param_groups[0], rate)
    groups = {name: settings for name, settings in groups.items() if settings != first}
    return kind(groups=groups, **first)


def _group_settings(kind: type[Optimizer], group: Mapping[str, Any], rate: float) -> dict[str, Any]:
    settings = {name: _plain(group[name]) for name in kind.own_settings()}
    if group.get("decoupled_weight_decay", False) != getattr(kind, "is_decoupled", False):
        raise UserError("optimizer: torch.optim.Adam with decoupled_weight_decay is AdamW; pass torch.optim.AdamW")
    lr = float(group["lr"])
    if rate == 0 and lr != 0:
        raise UserError("optimizer: the first group's lr is 0, and others are factors of it; give it another")
    return {**settings, "lr_factor": 1.0 if lr == rate else lr / rate}


def _plain(value: Any) -> Any:
    """Numbers out of tensors."""
    if isinstance(value, tuple):
        return tuple(_plain(part) for part in value)
    return value if isinstance(value, bool) else float(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_amount(value: Any) -> bool:
    return _is_number(value) and value >= 0


def _are_betas(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(_is_number(beta) and 0 <= beta < 1 for beta in value)


def _is_limit(value: Any) -> bool:
    return value is None or (_is_number(value) and value > 0)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


_REQUIREMENTS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("momentum", "weight_decay", "eps", "lr_factor"), (_is_amount, "a finite number, 0 or more")),
    **dict.fromkeys(("clip_norm", "clip_value"), (_is_limit, "a finite number above 0")),
    **dict.fromkeys(("nesterov", "maximize", "amsgrad", "centered"), (_is_flag, "true or false")),
    "dampening": (_is_number, "a finite number"),
    "alpha": (lambda value: _is_amount(value) and value <= 1, "a number from 0 to 1"),
    "betas": (_are_betas, "two numbers, each 0 or more and below 1"),
}
