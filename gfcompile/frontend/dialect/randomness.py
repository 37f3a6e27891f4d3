"""Random operators as functions of (seed, stream, their own arguments): `ops/random.py` draws."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gfcompile.frontend.dialect.formulas import attention, rrelu
from gfcompile.ops import gf

aten = torch.ops.aten
Function = Callable[..., Any]


def _keep(seed: Tensor, stream: int, shape: Sequence[int], p: float) -> Tensor:
    """1 with probability 1 - p."""
    kept: Tensor = gf.uniform(seed, stream, list(shape)) >= p
    return kept


def _dropout(seed: Tensor, stream: int, x: Tensor, p: float, train: bool) -> Tensor:
    if not train or p == 0:
        return x
    return x * _keep(seed, stream, x.shape, p) * _inverse(1 - p)


def _feature_dropout(seed: Tensor, stream: int, x: Tensor, p: float, train: bool) -> Tensor:
    if not train or p == 0:
        return x
    kept = _keep(seed, stream, x.shape[:2], p).reshape(*x.shape[:2], *[1] * (x.dim() - 2))
    return x * kept * _inverse(1 - p)


def _random_attention(seed: Tensor, stream: int, *args: Any, **settings: Any) -> Tensor:
    p = args[4] if len(args) > 4 else settings.get("dropout_p", 0.0)
    settings["drop"] = lambda weights: _dropout(seed, stream, weights, p, True)
    return attention(*args, **settings)


def _random_rrelu(
    seed: Tensor,
    stream: int,
    x: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: Any = None,
) -> Tensor:
    if not training:
        return rrelu(x, lower, upper)
    slope = gf.uniform(seed, stream, list(x.shape)) * (upper - lower) + lower
    return torch.where(x >= 0, x, x * slope)


ALPHA = -1.7580993408473766  # what SELU gives for minus infinity


def _alpha_dropout(seed: Tensor, stream: int, x: Tensor, p: float, train: bool) -> Tensor:
    return _alpha(x, p, _keep(seed, stream, x.shape, p)) if train and p else x


def _feature_alpha_dropout(seed: Tensor, stream: int, x: Tensor, p: float, train: bool) -> Tensor:
    if not train or p == 0:
        return x
    return _alpha(x, p, _keep(seed, stream, x.shape[:2], p).reshape(*x.shape[:2], *[1] * (x.dim() - 2)))


def _alpha(x: Tensor, p: float, kept: Tensor) -> Tensor:
    """Dropped values become ALPHA; scaled and shifted so that mean and variance stay."""
    a = _inverse(math.sqrt((ALPHA**2 * p + 1) * (1 - p)))
    return torch.where(kept, x, ALPHA) * a - ALPHA * a * p


def _inverse(value: float) -> float:
    return 1 / value if value else 0.0


def _bernoulli_in_place(seed: Tensor, stream: int, x: Tensor, p: float = 0.5, generator: Any = None) -> Tensor:
    return x.copy_(gf.uniform(seed, stream, list(x.shape)) < p)


def _bernoulli(seed: Tensor, stream: int, x: Tensor, p: float, generator: Any = None) -> Tensor:
    return (gf.uniform(seed, stream, list(x.shape)) < p).to(x.dtype)


def _bernoulli_of(seed: Tensor, stream: int, x: Tensor, generator: Any = None) -> Tensor:
    return (gf.uniform(seed, stream, list(x.shape)) < x).to(x.dtype)


def _rand(seed: Tensor, stream: int, size: Sequence[int], **_: Any) -> Tensor:
    drawn: Tensor = gf.uniform(seed, stream, list(size))
    return drawn


def _rand_like(seed: Tensor, stream: int, x: Tensor, **_: Any) -> Tensor:
    return _rand(seed, stream, x.shape)


def _randn(seed: Tensor, stream: int, size: Sequence[int], **_: Any) -> Tensor:
    """Box and Muller's transform of two numbers each."""
    pair = gf.uniform(seed, stream, [2, *size])
    radius = torch.sqrt(-2 * torch.log(1 - pair[0]))
    return radius * torch.cos(2 * math.pi * pair[1])


def _randn_like(seed: Tensor, stream: int, x: Tensor, **_: Any) -> Tensor:
    return _randn(seed, stream, x.shape)


RANDOM: dict[Any, Function] = {
    aten.dropout.default: _dropout,
    aten.dropout_.default: _dropout,
    aten.feature_dropout.default: _feature_dropout,
    aten.alpha_dropout.default: _alpha_dropout,
    aten.feature_alpha_dropout.default: _feature_alpha_dropout,
    aten.scaled_dot_product_attention.default: _random_attention,
    aten.rrelu.default: _random_rrelu,
    aten.bernoulli_.float: _bernoulli_in_place,
    aten.bernoulli.p: _bernoulli,
    aten.bernoulli.default: _bernoulli_of,
    aten.rand.default: _rand,
    aten.rand_like.default: _rand_like,
    aten.randn.default: _randn,
    aten.randn_like.default: _randn_like,
}
