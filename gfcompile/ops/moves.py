"""Values moved by a table that is known at compile time, or put where indices of the batch say."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.library import custom_op


@custom_op("gf::move", mutates_args=())
def move(sources: list[Tensor], table: Tensor, shape: list[int]) -> Tensor:
    """Element i is the sum over k of element `table[i, k] - 1` of the sources laid end to end; entry 0 adds nothing.

    With fewer rows than elements the table is that of one sample, and every sample of the sources is moved alike.
    """
    samples = _samples(shape, table)
    flat = torch.cat([source.reshape(samples, -1) for source in sources], dim=1)
    padded = torch.cat([flat.new_zeros(samples, 1), flat], dim=1)
    moved = padded[:, table.reshape(-1).long()].reshape(samples, *table.shape)
    return moved.sum(dim=-1, dtype=flat.dtype).reshape(shape) if table.shape[1] > 1 else moved.reshape(shape)


@move.register_fake
def _(sources: list[Tensor], table: Tensor, shape: list[int]) -> Tensor:
    return sources[0].new_empty(shape)


@custom_op("gf::put", mutates_args=())
def put(base: Tensor, index: Tensor, values: Tensor, accumulate: bool) -> Tensor:
    """Row by row: base [R, P] with values [R, I] put, or added, where index [R, I] says; the last of equals stays."""
    return base.scatter_add(1, index, values) if accumulate else base.scatter(1, index, values)


@put.register_fake
def _(base: Tensor, index: Tensor, values: Tensor, accumulate: bool) -> Tensor:
    return torch.empty_like(base)


def _samples(shape: list[int], table: Tensor) -> int:
    count = 1
    for size in shape:
        count *= size
    return count // table.shape[0]
