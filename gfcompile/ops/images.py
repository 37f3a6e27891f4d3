"""Between the layouts of PyTorch and of the kernels, for the eager implementations."""

from __future__ import annotations

from torch import Tensor

from gfcompile.geometry.layouts import WeightLayout


def to_nchw(value: Tensor, channels_last: bool = True) -> Tensor:
    """As PyTorch's operators take it."""
    return value.permute(0, 3, 1, 2) if channels_last else value


def from_nchw(value: Tensor, channels_last: bool = True) -> Tensor:
    """Back from PyTorch's order."""
    return (value.permute(0, 2, 3, 1) if channels_last else value).contiguous()


def unpacked(w: Tensor, shape: list[int], groups: int) -> Tensor:
    """A packed weight in its logical shape."""
    return WeightLayout.for_conv(shape, groups).unpack(w)


def packed(w: Tensor, groups: int) -> Tensor:
    """A weight as the kernels read it."""
    return WeightLayout.for_conv(list(w.shape), groups).pack(w)
