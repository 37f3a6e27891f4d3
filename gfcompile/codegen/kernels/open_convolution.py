"""A convolution whose algorithm is open: one function to describe it, and the ways to compute it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from tvm import te, tirx

from gfcompile.codegen.kernels.conv import conv2d
from gfcompile.codegen.kernels.winograd import transform_weights, winograd_conv2d
from gfcompile.geometry.layouts import block_size
from gfcompile.geometry.winograd import KERNEL, Convolution

WEIGHTS = 1  # the operand
_OPEN = "gf.open_convolution"  # the attribute that says which


@dataclass(frozen=True)
class Way:
    """Kernels before any schedule. `prepare` makes of the weights, once, what `function` then takes in their place."""

    function: tirx.PrimFunc
    prepare: tirx.PrimFunc | None = None


def write_open(convolution: Convolution) -> tirx.PrimFunc:
    """(x, packed weights, y): its plain sum, marked."""
    return compute_by(convolution, None).function.with_attr(_OPEN, json.dumps(asdict(convolution)))


def read_open(function: tirx.PrimFunc) -> Convolution | None:
    """None for any other kernel."""
    if function.attrs is None or _OPEN not in function.attrs:
        return None
    found = json.loads(str(function.attrs[_OPEN]))
    size, channels, padding = (tuple(found[name]) for name in ("size", "channels", "padding"))
    return Convolution(size, channels, padding, found["is_frozen"])


def compute_by(convolution: Convolution, edge: int | None) -> Way:
    """By Winograd's filtering with tiles of this edge, or, without one, by the plain sum."""
    n, *out = convolution.size
    inputs, outputs = convolution.channels
    high, wide = (size + KERNEL - 1 - 2 * pad for size, pad in zip(out, convolution.padding, strict=True))
    block = block_size(outputs)
    x = te.placeholder((n, high, wide, inputs), "float32", "x")
    w = te.placeholder((outputs // block, KERNEL, KERNEL, inputs, block), "float32", "w")
    if edge is None:
        return Way(te.create_prim_func([x, w, conv2d(x, w, (1, 1), convolution.padding, (1, 1), 1)]))
    if not convolution.is_prepared(edge):
        return Way(te.create_prim_func([x, w, winograd_conv2d(x, w, convolution.padding, edge)]))
    transformed = transform_weights(w, edge)
    u = te.placeholder(transformed.shape, "float32", "u")
    function = te.create_prim_func([x, u, winograd_conv2d(x, u, convolution.padding, edge)])
    return Way(function, te.create_prim_func([w, transformed]))
