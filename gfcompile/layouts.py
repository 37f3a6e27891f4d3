"""How convolution weights lie in memory: the order in which the kernels read them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

BLOCKS = (16, 8)


def block_size(out_channels: int) -> int:
    """Output channels side by side in a packed weight: whole vectors where they divide, else the largest divisor."""
    for block in BLOCKS:
        if out_channels % block == 0:
            return block
    return max(divisor for divisor in range(1, 17) if out_channels % divisor == 0)


@dataclass(frozen=True)
class WeightLayout:
    """physical = logical.reshape(split_shape).permute(order), contiguous.

    Ordinary and grouped: [Co, Ci/g, kh, kw] -> [Co/kb, kh, kw, Ci/g, kb]; depthwise: [C, 1, kh, kw] -> [kh, kw, 1, C].
    """

    logical_shape: tuple[int, ...]
    split_shape: tuple[int, ...]
    order: tuple[int, ...]

    @classmethod
    def for_conv(cls, shape: list[int], groups: int) -> WeightLayout:
        """The layout that the kernel of a convolution with these weights expects."""
        out_channels, per_group, high, wide = shape
        if groups > 1 and per_group == 1 and out_channels == groups:
            return cls(tuple(shape), tuple(shape), (2, 3, 1, 0))
        block = block_size(out_channels)
        return cls(tuple(shape), (out_channels // block, block, per_group, high, wide), (0, 3, 4, 2, 1))

    @cached_property
    def physical_shape(self) -> tuple[int, ...]:
        return tuple(self.split_shape[axis] for axis in self.order)

    @cached_property
    def inverse_order(self) -> tuple[int, ...]:
        return tuple(self.order.index(axis) for axis in range(len(self.order)))

    def pack(self, weight: Tensor) -> Tensor:
        return weight.reshape(self.split_shape).permute(self.order).contiguous()

    def unpack(self, weight: Tensor) -> Tensor:
        return weight.permute(self.inverse_order).reshape(self.logical_shape).contiguous()
