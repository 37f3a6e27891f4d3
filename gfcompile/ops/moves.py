"""Values moved by a table that is known at compile time: what strides, scatters and constant indices come down to."""

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


def _samples(shape: list[int], table: Tensor) -> int:
    count = 1
    for size in shape:
        count *= size
    return count // table.shape[0]
