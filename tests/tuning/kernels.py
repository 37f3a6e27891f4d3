"""Kernels to try, as the compiler has them before they are scheduled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import te, tirx

from gfcompile.codegen import kernels

PAIRS = ((1, 1), (1, 1), (1, 1))  # stride, padding, dilation


def kernel(compute: Callable[..., Any], *shapes: tuple[int, ...], dtypes: tuple[str, ...] = ()) -> tirx.PrimFunc:
    """The function of a tensor expression; a list of tensors is several outputs."""
    types = dtypes or ("float32",) * len(shapes)
    inputs = [te.placeholder(shape, dtype, f"p{i}") for i, (shape, dtype) in enumerate(zip(shapes, types))]
    outputs = compute(*inputs)
    return te.create_prim_func([*inputs, *(outputs if isinstance(outputs, (list, tuple)) else [outputs])])


def convolution(images: int = 2, size: int = 9, inputs: int = 16, outputs: int = 16) -> tirx.PrimFunc:
    """3x3, padded: its schedule needs workspace."""
    weight = (1, 3, 3, inputs, outputs)
    return kernel(lambda x, w: kernels.conv2d(x, w, *PAIRS, 1), (images, size, size, inputs), weight)


def scaled(factor: float, count: int = 1000) -> tirx.PrimFunc:
    return kernel(lambda x: te.compute(x.shape, lambda i: x[i] * tirx.const(factor, "float32")), (count,))


def product(factor: float = 1.0, rows: int = 24, inner: int = 40, columns: int = 96) -> tirx.PrimFunc:
    """A matrix product times a factor."""

    def compute(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        r = te.reduce_axis((0, inner), "r")
        c = te.compute((rows, columns), lambda i, j: te.sum(a[i, r] * b[r, j], axis=[r]), name="product")
        return te.compute((rows, columns), lambda i, j: c[i, j] * tirx.const(factor, "float32"), name="scale")

    return kernel(compute, (rows, inner), (inner, columns))
