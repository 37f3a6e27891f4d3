"""How convolution weights lie in memory: the order in which the kernels read them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor


def block_size(out_channels: int, groups: int = 1) -> int:
    """Output channels side by side in a packed weight: it divides a group's, 16 or 8 where they do."""
    channels = out_channels // groups
    return next(size for size in (16, 8, *range(15, 0, -1)) if channels % size == 0)


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
        block = block_size(out_channels, groups)
        return cls(tuple(shape), (out_channels // block, block, per_group, high, wide), (0, 3, 4, 2, 1))

    @cached_property
    def physical_shape(self) -> tuple[int, ...]:
        return tuple(self.split_shape[axis] for axis in self.order)

    @cached_property
    def inverse_order(self) -> tuple[int, ...]:
        return tuple(self.order.index(axis) for axis in range(len(self.order)))

    def pack(self, weight: Tensor) -> Tensor:
        """From PyTorch's order into the kernel's."""
        return weight.reshape(self.split_shape).permute(self.order).contiguous()

    def unpack(self, weight: Tensor) -> Tensor:
        """From the kernel's order into PyTorch's."""
        return weight.permute(self.inverse_order).reshape(self.logical_shape).contiguous()
