"""Operators that pick elements by their order, as counts of comparisons: a library has no sort.

They act below autograd, which has its own rule for each: the gradient goes to the element that the index names.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
Picked = tuple[Tensor, Tensor]  # values and indices


def _max(x: Tensor, axis: int, keepdim: bool = False) -> Picked:
    return _at(x, x.argmax(axis, keepdim=True), axis, keepdim)


def _min(x: Tensor, axis: int, keepdim: bool = False) -> Picked:
    return _at(x, x.argmin(axis, keepdim=True), axis, keepdim)


def _at(x: Tensor, index: Tensor, axis: int, keepdim: bool) -> Picked:
    values = x.gather(axis, index)
    return (values, index) if keepdim else (values.squeeze(axis), index.squeeze(axis))


def _sort(x: Tensor, axis: int = -1, descending: bool = False) -> Picked:
    return _first(x, x.shape[axis], axis, descending)


def _stable_sort(x: Tensor, *, stable: bool | None, dim: int = -1, descending: bool = False) -> Picked:
    return _sort(x, dim, descending)


def _topk(x: Tensor, k: int, axis: int = -1, largest: bool = True, sorted: bool = True) -> Picked:
    return _first(x, k, axis, largest)


def _median(x: Tensor, axis: int, keepdim: bool = False) -> Picked:
    return _kth(x, (x.shape[axis] + 1) // 2, axis, keepdim)


def _kth(x: Tensor, k: int, axis: int = -1, keepdim: bool = False) -> Picked:
    _, order = _first(x, k, axis, descending=False)
    return _at(x, order.narrow(axis, k - 1, 1), axis, keepdim)


def _first(x: Tensor, count: int, axis: int, descending: bool) -> Picked:
    """The first `count` elements in order, equal ones as they stand: an element's place is how many go before it."""
    rows = x.movedim(axis, -1)
    own, other = rows.unsqueeze(-1), rows.unsqueeze(-2)  # [..., i, 1], [..., 1, j]
    number = torch.arange(rows.shape[-1])
    goes_before = other > own if descending else other < own
    ties = (other == own) & (number < number.unsqueeze(-1))
    place = (goes_before | ties).sum(-1)  # [..., i]
    order = torch.zeros_like(place).scatter(-1, place, number.expand(place.shape).contiguous())
    index = order.narrow(-1, 0, count).movedim(-1, axis)
    return x.gather(axis, index), index


ORDERING: dict[Any, Any] = {
    aten.max.dim: _max,
    aten.min.dim: _min,
    aten.sort.default: _sort,
    aten.sort.stable: _stable_sort,
    aten.topk.default: _topk,
    aten.median.dim: _median,
    aten.kthvalue.default: _kth,
}
