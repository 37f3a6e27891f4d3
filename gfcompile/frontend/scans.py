"""Running sums, products and maxima, as reductions over all up to each element. They act below autograd."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def _up_to_each(x: Tensor, axis: int, neutral: float) -> Tensor:
    """[..., i, j]: element j of `axis` where j <= i, the neutral one after."""
    rows = x.movedim(axis, -1).unsqueeze(-2)
    number = torch.arange(rows.shape[-1])
    return torch.where(number <= number.unsqueeze(-1), rows, torch.full((), neutral, dtype=x.dtype))


def _cumsum(x: Tensor, axis: int, *, dtype: torch.dtype | None = None) -> Tensor:
    x = x.to(dtype or torch.int64) if not x.is_floating_point() else x.to(dtype or x.dtype)
    return _up_to_each(x, axis, 0).sum(-1).movedim(-1, axis)


def _cumprod(x: Tensor, axis: int, *, dtype: torch.dtype | None = None) -> Tensor:
    x = x if dtype is None else x.to(dtype)
    return _up_to_each(x, axis, 1.0).prod(-1).movedim(-1, axis)


def _logcumsumexp(x: Tensor, axis: int) -> Tensor:
    return _up_to_each(x, axis, -math.inf).logsumexp(-1).movedim(-1, axis)


def _cummax(x: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """Of equal ones the last."""
    seen = _up_to_each(x, axis, -math.inf)
    values = seen.amax(-1, keepdim=True)
    index = torch.where(seen == values, torch.arange(seen.shape[-1]), -1).amax(-1)
    return values.squeeze(-1).movedim(-1, axis), index.movedim(-1, axis)


def _cummin(x: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    values, index = _cummax(-x, axis)
    return -values, index


SCANS: dict[Any, Any] = {
    aten.cumsum.default: _cumsum,
    aten.cumprod.default: _cumprod,
    aten.logcumsumexp.default: _logcumsumexp,
    aten.cummax.default: _cummax,
    aten.cummin.default: _cummin,
}
