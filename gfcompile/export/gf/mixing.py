"""Channel mixing, and gradient filtering of a whole convolution."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gfcompile.export.emitter import Emitter, Value
from gfcompile.export.gf.images import from_nchw, packed, to_nchw, unpacked
from gfcompile.export.gf.patches import Patches, broadcast, means, sums
from gfcompile.export.table import Result, Table
from gfcompile.geometry.convolution import ConvGeometry
from gfcompile.geometry.filtering import FilterRecipe
from gfcompile.ops import gf

TABLE = Table()
Ints = Sequence[int]


def mix(to: Emitter, g: Value, w: Value, groups: int, taps: Ints) -> str:
    """q[P] = sum over co and taps of w[co, ci, u] * g[P + middle - u*tap]: a transposed convolution, cropped."""
    weight, kernel = w.name, list(w.shape[2:])
    summed = [axis for axis, tap in zip((2, 3), taps, strict=True) if tap == 0 and w.shape[axis] > 1]
    if summed:
        weight = to.op("ReduceSum", w, summed, keepdims=1)
        kernel = [1 if axis in summed else size for axis, size in enumerate(w.shape)][2:]
    step = [max(tap, 1) for tap in taps]
    reach = [s * (k - 1) for s, k in zip(step, kernel, strict=True)]
    pads = [*(r // 2 for r in reach), *(r - r // 2 for r in reach)]
    return to.op("ConvTranspose", g, weight, dilations=step, pads=pads, group=groups)


def mix_weight(to: Emitter, g: Value, x_tilde: Value, groups: int, kernel: Ints) -> str:
    """sum over n and patches of g * x_tilde, the same for every tap."""
    left, right = (
        to.op("Reshape", value, [value.shape[0], groups, value.shape[1] // groups, -1]) for value in (g, x_tilde)
    )
    mixed = to.op("Einsum", left, right, equation="ngop,ngip->goi")
    shape = [g.shape[1], x_tilde.shape[1] // groups]
    tap = to.op("Reshape", mixed, [*shape, 1, 1])
    return tap if list(kernel) == [1, 1] else to.op("Expand", tap, [*shape, *kernel])


@TABLE.writes(gf.channel_mix.default)
def _channel_mix(to: Emitter, out: Value, g: Value, w: Value, groups: int, taps: Ints) -> str:
    return mix(to, g, w, groups, taps)


@TABLE.writes(gf.channel_mix_nhwc.default)
def _channel_mix_nhwc(to: Emitter, out: Value, g: Value, w: Value, shape: Ints, groups: int, taps: Ints) -> str:
    return from_nchw(to, mix(to, to_nchw(to, g), unpacked(to, w, shape, groups), groups, taps))


@TABLE.writes(gf.channel_mix_weight.default)
def _channel_mix_weight(to: Emitter, out: Value, g: Value, x_tilde: Value, groups: int, kernel: Ints) -> str:
    return mix_weight(to, g, x_tilde, groups, kernel)


@TABLE.writes(gf.channel_mix_weight_nhwc.default)
def _channel_mix_weight_nhwc(to: Emitter, out: Value, g: Value, x_tilde: Value, shape: Ints, groups: int) -> str:
    mixed = mix_weight(to, to_nchw(to, g), to_nchw(to, x_tilde), groups, shape[2:])
    return packed(to, mixed, shape, groups)


@TABLE.writes(gf.filtered_convolution_backward.default)
def _filtered_convolution_backward(
    to: Emitter,
    out: tuple[Value, ...],
    gy: Value,
    x: Value,
    w: Value,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int,
    r: int,
    reference: bool,
) -> Result:
    recipe = FilterRecipe.of(ConvGeometry.of(x, w, gy, stride, padding, dilation, groups), r, reference)
    in_grid, out_grid = (Patches.of(t.shape, *grid, False) for t, grid in ((x, recipe.in_grid), (gy, recipe.out_grid)))
    patches = tuple(windows.count for windows in out_grid.windows)
    scale = to.scalar(recipe.scale, torch.float32)
    g = Value(means(to, gy, out_grid), (*gy.shape[:2], *patches), gy.dtype)
    x_tilde = Value(sums(to, x, in_grid), (*x.shape[:2], *patches), x.dtype)
    gx = broadcast(to, to.op("Mul", mix(to, g, w, groups, recipe.taps), scale), in_grid)
    gw = to.op("Mul", mix_weight(to, g, x_tilde, groups, w.shape[2:]), scale)
    return gx, gw, to.op("ReduceSum", gy, [0, 2, 3], keepdims=0)
