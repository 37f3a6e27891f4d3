"""Operators that are a formula over others: attention, normalised weights, and what is seldom met."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

aten = torch.ops.aten
Function = Callable[..., Any]


def _copysign(x: Tensor, sign: Tensor) -> Tensor:
    return torch.where((sign < 0) == (x < 0), x, -x)


def _one_hot(index: Tensor, classes: int = -1) -> Tensor:
    """The number of classes must be given: a graph has one shape."""
    if classes < 0:
        return aten.one_hot(index, classes)
    return (index.unsqueeze(-1) == torch.arange(classes)).to(torch.int64)


def _bilinear(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    z = torch.einsum("...i,oij,...j->...o", x, weight, y)
    return z if bias is None else z + bias


def _addmv(base: Tensor, matrix: Tensor, vector: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return base * beta + (matrix @ vector) * alpha


def _addbmm(base: Tensor, x: Tensor, y: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return base * beta + (x @ y).sum(0) * alpha


def _cdist(x: Tensor, y: Tensor, p: float = 2, compute_mode: int | None = None) -> Tensor:
    return torch.linalg.vector_norm(x.unsqueeze(-2) - y.unsqueeze(-3), p, -1)


def _scatter_reduce(
    x: Tensor, axis: int, index: Tensor, values: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    if reduce == "sum" and include_self:
        return x.scatter_add(axis, index, values)
    return aten.scatter_reduce(x, axis, index, values, reduce, include_self=include_self)


# ---- fake quantisation: the gradient passes where the value was within reach


def _fake_quantize(x: Tensor, scale: Any, zero_point: Any, low: int, high: int) -> Tensor:
    steps = torch.round(x / scale) + zero_point
    quantised = (steps.clamp(low, high) - zero_point) * scale
    within = (steps >= low) & (steps <= high)
    return torch.where(within, x, 0.0) + (quantised - torch.where(within, x, 0.0)).detach()


def _fake_quantize_channels(x: Tensor, scale: Tensor, zero_point: Tensor, axis: int, low: int, high: int) -> Tensor:
    shape = [-1 if each == axis else 1 for each in range(x.dim())]
    return _fake_quantize(x, scale.reshape(shape), zero_point.reshape(shape).to(x.dtype), low, high)


# ---- attention, activations, weights


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    drop: Callable[[Tensor], Tensor] = lambda weights: weights,
) -> Tensor:
    """softmax(q k' * scale + mask) v, as the formula says; `drop` acts on the softmax."""
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    scores = (query * (scale if scale is not None else query.shape[-1] ** -0.5)) @ key.transpose(-2, -1)
    if is_causal:
        rows, cols = scores.shape[-2:]
        attn_mask = torch.arange(rows)[:, None] >= torch.arange(cols)
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        scores = scores.masked_fill(attn_mask.logical_not(), -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return drop(scores.softmax(-1)) @ value


def rrelu(
    x: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, generator: Any = None
) -> Tensor:
    """Outside of training the slope is the middle one."""
    return F.leaky_relu(x, (lower + upper) / 2)


def _weight_norm(direction: Tensor, size: Tensor, axis: int = 0) -> Tensor:
    return _weight_norm_interface(direction, size, axis)[0]


def _weight_norm_interface(direction: Tensor, size: Tensor, axis: int = 0) -> tuple[Tensor, Tensor]:
    """The direction scaled to `size` along every axis but one, and its own size."""
    others = [each for each in range(direction.dim()) if each != axis]
    norm = (direction * direction).sum(others, keepdim=True).sqrt()
    return direction * (size / norm), norm


FORMULAS: dict[Any, Function] = {
    aten.exp2.default: lambda x: torch.exp(x * math.log(2)),
    aten.erfc.default: lambda x: 1 - torch.erf(x),
    aten.hypot.default: lambda x, y: torch.sqrt(x * x + y * y),
    aten.fmax.default: lambda x, y: torch.where((x >= y) | torch.isnan(y), x, y),
    aten.fmin.default: lambda x, y: torch.where((x <= y) | torch.isnan(y), x, y),
    aten.copysign.Tensor: _copysign,
    aten.dist.default: lambda x, y, p=2: torch.linalg.vector_norm(x - y, p),
    aten.one_hot.default: _one_hot,
    aten.take.default: lambda x, index: x.reshape(-1)[index],
    aten.bilinear.default: _bilinear,
    aten.addmv.default: _addmv,
    aten.addbmm.default: _addbmm,
    aten.cdist.default: _cdist,
    aten.scatter_reduce.two: _scatter_reduce,
    aten.fake_quantize_per_tensor_affine.default: _fake_quantize,
    aten.fake_quantize_per_tensor_affine.tensor_qparams: _fake_quantize,
    aten.fake_quantize_per_channel_affine.default: _fake_quantize_channels,
    aten._weight_norm.default: _weight_norm,
    aten._weight_norm_interface.default: _weight_norm_interface,
    aten.scaled_dot_product_attention.default: attention,
    aten.rrelu.default: rrelu,
}
