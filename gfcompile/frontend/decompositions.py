"""Which operators the tracer takes apart: core ATen's list, and what that leaves whole and we have no kernel for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._decomp import core_aten_decompositions
from torch._ops import OpOverload

from gfcompile.frontend.ordering import ORDERING
from gfcompile.frontend.scans import SCANS

aten = torch.ops.aten
Normalised = tuple[Tensor, Tensor, Tensor]


def decompositions() -> dict[Any, Any]:
    """For the tracer: operator -> the same in smaller ones."""
    return {**_core(), **_OURS, **ORDERING, **SCANS}


@cache
def _core() -> dict[OpOverload, Callable[..., object]]:
    """Core ATen's list, which PyTorch gathers from all its operators each time it is asked."""
    return dict(core_aten_decompositions())


def _normalise(x: Tensor, axes: list[int], eps: float) -> Normalised:
    """Centred and scaled to variance 1 over `axes`, with the mean and the inverse deviation, their axes kept."""
    mean = x.mean(axes, keepdim=True)
    centred = x - mean
    rstd = ((centred * centred).mean(axes, keepdim=True) + eps).rsqrt()
    return centred * rstd, mean, rstd


def _affine(y: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def _layer_norm(x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float) -> Normalised:
    axes = list(range(x.dim() - len(shape), x.dim()))
    y, mean, rstd = _normalise(x, axes, eps)
    return _affine(y, weight, bias), mean, rstd


def _group_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    samples: int,
    channels: int,
    area: int,
    groups: int,
    eps: float,
) -> Normalised:
    y, mean, rstd = _normalise(x.reshape(samples, groups, channels // groups, area), [2, 3], eps)
    per_channel = [1, channels] + [1] * (x.dim() - 2)
    scale, shift = (None if value is None else value.reshape(per_channel) for value in (weight, bias))
    y = _affine(y.reshape(x.shape), scale, shift)
    return y, mean.reshape(samples, groups), rstd.reshape(samples, groups)


def _batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float, eps: float
) -> Normalised:
    """Over the batch, without running statistics: instance norms and standardised weights come to this."""
    y, mean, rstd = _normalise(x, [axis for axis in range(x.dim()) if axis != 1], eps)
    per_channel = [1, x.shape[1]] + [1] * (x.dim() - 2)
    scale, shift = (None if value is None else value.reshape(per_channel) for value in (weight, bias))
    return _affine(y, scale, shift), mean.reshape(-1), rstd.reshape(-1)


def _variance(
    x: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> Tensor:
    return _variance_and_mean(x, dim, correction=correction, keepdim=keepdim)[0]


def _variance_and_mean(
    x: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    axes = [axis % x.dim() for axis in dim] if dim else list(range(x.dim()))
    count = math.prod(x.shape[axis] for axis in axes)
    mean = x.mean(axes, keepdim=True)
    centred = x - mean
    variance = (centred * centred).sum(axes, keepdim=keepdim) / max(
        count - (1 if correction is None else correction), 0
    )
    return variance, mean if keepdim else mean.reshape(variance.shape)


def _vector_norm(
    x: Tensor, ord: float = 2, dim: Sequence[int] | None = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    axes = list(dim) if dim else list(range(x.dim()))
    if ord == 2:
        return (x * x).sum(axes, keepdim=keepdim).sqrt()
    if ord == 0:
        return (x != 0).sum(axes, keepdim=keepdim).to(x.dtype)
    size = x.abs()
    if ord == 1:
        return size.sum(axes, keepdim=keepdim)
    if math.isinf(ord):
        return size.amax(axes, keepdim=keepdim) if ord > 0 else size.amin(axes, keepdim=keepdim)
    return size.pow(ord).sum(axes, keepdim=keepdim).pow(1 / ord)


def _any(x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    """Masks as numbers: lowering has no maximum of masks."""
    axes = list(range(x.dim())) if dim is None else dim
    return (x != 0).to(torch.int32).amax(axes, keepdim=keepdim) > 0


def _argmax(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Of a mask, as of numbers."""
    return x.to(torch.int32).argmax(dim, keepdim) if x.dtype is torch.bool else NotImplemented


def _add(x: Tensor, y: Any, alpha: float = 1) -> Tensor:
    """x + alpha*y in two steps: lowering knows no alpha."""
    return NotImplemented if alpha == 1 else x + y * alpha


def _sub(x: Tensor, y: Any, alpha: float = 1) -> Tensor:
    return NotImplemented if alpha == 1 else x - y * alpha


def _elu(x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    return torch.where(x > 0, x * scale, (x * input_scale).expm1() * (alpha * scale))


def _silu_backward(gy: Tensor, x: Tensor) -> Tensor:
    """With the gradient last: what stands before it fuses into the kernel that makes the gradient."""
    gate = x.sigmoid()
    return gy * (gate * (x * (1 - gate) + 1))


def _sinh(x: Tensor) -> Tensor:
    """From e^x - 1, so that small values keep their digits."""
    less = x.expm1()
    return (less + less / (less + 1)) * 0.5


def _cosh(x: Tensor) -> Tensor:
    return (x.exp() + (-x).exp()) * 0.5


_OURS = {
    aten.native_layer_norm.default: _layer_norm,
    aten.native_group_norm.default: _group_norm,
    aten._native_batch_norm_legit.no_stats: _batch_norm,
    aten.var.correction: _variance,
    aten.var_mean.correction: _variance_and_mean,
    aten.linalg_vector_norm.default: _vector_norm,
    aten.add.Tensor: _add,
    aten.add.Scalar: _add,
    aten.sub.Tensor: _sub,
    aten.sub.Scalar: _sub,
    aten.any.default: _any,
    aten.argmax.default: _argmax,
    aten.any.dim: _any,
    aten.any.dims: _any,
    aten.elu.default: _elu,
    aten.silu_backward.default: _silu_backward,
    aten.sinh.default: _sinh,
    aten.cosh.default: _cosh,
}
