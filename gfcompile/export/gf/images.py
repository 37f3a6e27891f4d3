"""Between the layouts of PyTorch and of the kernels: `ops.images` and `layouts` in ONNX."""

from __future__ import annotations

from collections.abc import Sequence

from gfcompile.export.emitter import Emitter, Operand, Value
from gfcompile.geometry.layouts import WeightLayout


def to_nchw(to: Emitter, x: Value) -> Value:
    """[N, H, W, C] as [N, C, H, W]."""
    moved = to.op("Transpose", x, perm=[0, 3, 1, 2])
    return Value(moved, tuple(x.shape[axis] for axis in (0, 3, 1, 2)), x.dtype)


def from_nchw(to: Emitter, x: Operand) -> str:
    """[N, C, H, W] as [N, H, W, C]."""
    return to.op("Transpose", x, perm=[0, 2, 3, 1])


def unpacked(to: Emitter, w: Value, shape: Sequence[int], groups: int) -> Value:
    """A packed weight in its logical shape."""
    layout = WeightLayout.for_conv(list(shape), groups)
    unrolled = to.op("Transpose", w, perm=list(layout.inverse_order))
    return Value(to.op("Reshape", unrolled, layout.logical_shape), layout.logical_shape, w.dtype)


def packed(to: Emitter, w: Operand, shape: Sequence[int], groups: int) -> str:
    """A weight of this logical shape as the kernels read it."""
    layout = WeightLayout.for_conv(list(shape), groups)
    return to.op("Transpose", to.op("Reshape", w, layout.split_shape), perm=list(layout.order))
