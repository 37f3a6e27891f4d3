"""The keyword arguments of Python, made from `schema.py` by `python -m gfcompile.settings.reference`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

from gfcompile.settings.schema import PathLike


class SettingsKeywords(TypedDict, total=False):
    """All that compiling is told of, beside the model and the shape of its input."""

    layers: int | None
    train: str | Sequence[str]
    batchnorm: str | Mapping[str, str]
    dropout: bool
    train_affine: bool
    plan: Any
    r: int | Mapping[str, int | None] | None
    exact: bool
    sparse: Any
    sparse_strategy: str
    compat: str | None
    memory: int | str | None
    calculus: bool
    loss: str | Mapping[str, Any] | Callable[..., Any]
    optimizer: Any
    lr: float | None
    momentum: float | None
    weight_decay: float | None
    dampening: float | None
    alpha: float | None
    eps: float | None
    clip_norm: float | None
    clip_value: float | None
    betas: Sequence[float] | None
    nesterov: bool | None
    amsgrad: bool | None
    centered: bool | None
    maximize: bool | None
    groups: Mapping[str, Mapping[str, Any]] | None
    target: str
    arch: str | None
    linker: str | None
    libc: str | None
    winograd: bool
    cache_prefix: bool
    out: PathLike | None
    dump: PathLike | None
    debug: bool
    tuning: bool | PathLike


class MeasuringKeywords(TypedDict, total=False):
    """What `quality` is told."""

    layers: int | None
    train: str | Sequence[str]
    batchnorm: str | Mapping[str, str]
    dropout: bool
    loss: str | Mapping[str, Any] | Callable[..., Any]
    r: Sequence[int]
    cosine: float


class PlanningKeywords(TypedDict, total=False):
    """What `plan` is told."""

    memory: int | str | None
    step_flops: float | str | None
    r: Sequence[int]
    sparse: Sequence[float]
    layers: int | None
    train: str | Sequence[str]
    batchnorm: str | Mapping[str, str]
    dropout: bool
    loss: str | Mapping[str, Any] | Callable[..., Any]
    optimizer: Any
    lr: float | None
    momentum: float | None
    weight_decay: float | None
    dampening: float | None
    alpha: float | None
    eps: float | None
    clip_norm: float | None
    clip_value: float | None
    betas: Sequence[float] | None
    nesterov: bool | None
    amsgrad: bool | None
    centered: bool | None
    maximize: bool | None
    groups: Mapping[str, Mapping[str, Any]] | None
    target: str
    arch: str | None
    linker: str | None
    libc: str | None
    tuning: bool | PathLike
