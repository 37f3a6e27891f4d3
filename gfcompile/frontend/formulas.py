"""Operators that are seldom met, as formulas over those that the compiler knows, before they are differentiated."""

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


# ---- windows


def _with_batch(function: Function) -> Function:
    """Pools take [C, H, W] too: as a batch of one."""

    def pool(x: Tensor, *args: Any, **settings: Any) -> Any:
        if x.dim() != 3:
            return function(x, *args, **settings)
        y = function(x.unsqueeze(0), *args, **settings)
        return y.squeeze(0) if isinstance(y, Tensor) else tuple(part.squeeze(0) for part in y)

    return pool


def _conv_transpose3d(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    """The sum over the depth of the kernel of 2-D ones, each plane put `stride` apart."""
    steps, around, more, gaps = (_three(value) for value in (stride, padding, output_padding, dilation))
    samples, channels, depth, height, width = x.shape
    flat = x.transpose(1, 2).reshape(samples * depth, channels, height, width)
    spread = (depth - 1) * steps[0] + 1
    planes = spread + gaps[0] * (w.shape[2] - 1) + more[0]
    total: Tensor | None = None
    for tap in range(w.shape[2]):
        y = F.conv_transpose2d(flat, w[:, :, tap], None, steps[1:], around[1:], more[1:], groups, gaps[1:])
        y = y.reshape(samples, depth, *y.shape[1:]).transpose(1, 2).unsqueeze(3)  # [N, Co, D, 1, H, W]
        y = aten.constant_pad_nd(y, [0, 0, 0, 0, 0, steps[0] - 1]).flatten(2, 3)[:, :, :spread]
        first = tap * gaps[0]
        y = aten.constant_pad_nd(y, [0, 0, 0, 0, first, planes - first - spread])
        total = y if total is None else total + y
    assert total is not None
    total = total[:, :, around[0] : planes - around[0]]
    return total if b is None else total + b.reshape(1, -1, 1, 1, 1)


def _three(value: Any) -> list[int]:
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    return values * 3 if len(values) == 1 else values


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
    aten.max_pool2d.default: _with_batch(aten.max_pool2d.default),
    aten.max_pool2d_with_indices.default: _with_batch(aten.max_pool2d_with_indices.default),
    aten.avg_pool2d.default: _with_batch(aten.avg_pool2d.default),
    aten.adaptive_avg_pool2d.default: _with_batch(aten.adaptive_avg_pool2d.default),
    aten.conv_transpose3d.input: _conv_transpose3d,
}
