"""Random numbers as a function of (seed, stream, position): Philox-2x32, ten rounds, a counter-based generator.

Nothing is kept between two numbers, so the mask of a dropout is the same on every device, with any number of threads.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.library import custom_op

MULTIPLIER, WEYL, ROUNDS = 0xD256D193, 0x9E3779B9, 10
WORD = 0xFFFFFFFF


@custom_op("gf::uniform", mutates_args=())
def uniform(seed: Tensor, stream: int, shape: list[int]) -> Tensor:
    """Numbers in [0, 1) on a grid of 2**-24. The seed is an int64 of which the low 32 bits count."""
    count = 1
    for size in shape:
        count *= size
    low = torch.arange(count, dtype=torch.int64)
    high = torch.full_like(low, stream)
    key = seed.reshape(()) & WORD
    for _ in range(ROUNDS):
        product = low * MULTIPLIER  # the 64 bits of it, whatever the sign
        low, high = ((product >> 32) & WORD) ^ key ^ high, product & WORD
        key = (key + WEYL) & WORD
    return ((low >> 8).to(torch.float32) * 2.0**-24).reshape(shape)


@uniform.register_fake
def _(seed: Tensor, stream: int, shape: list[int]) -> Tensor:
    return seed.new_empty(shape, dtype=torch.float32)
