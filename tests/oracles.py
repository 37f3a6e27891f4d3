"""NumPy oracle of a filtered convolution, written from docs/method.md, section 1, and nothing else.

Both modes are the same sum over patches; they differ in the input window of a patch, in how taps reach
neighbouring patches, and in the factor 1/(s_h*s_w). Arrays are NCHW; pairs are (height, width).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import ceil, floor, prod

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Pair = tuple[int, int]


@dataclass(frozen=True)
class AxisGrid:
    """The patches of one axis: real output rows, the input rows they stand for, and how taps spread."""

    outputs: list[slice]
    inputs: list[slice]
    sums_taps: bool
    patch_dilation: int


def exact_conv_forward(
    x: Array, w: Array, b: Array | None, *, stride: Pair, padding: Pair, dilation: Pair, groups: int
) -> Array:
    (sh, sw), (ph, pw), (dh, dw) = stride, padding, dilation
    kh, kw = w.shape[2:]
    padded = np.pad(np.asarray(x, np.float64), ((0, 0), (0, 0), (ph, ph), (pw, pw)))
    h = (padded.shape[2] - dh * (kh - 1) - 1) // sh + 1
    v = (padded.shape[3] - dw * (kw - 1) - 1) // sw + 1
    taps = _split_groups(np.asarray(w, np.float64), groups, axis=0)  # [G, Co/G, Ci/G, kh, kw]
    y = np.zeros((len(x), len(w), h, v))
    for i, j in product(range(kh), range(kw)):
        seen = padded[:, :, i * dh : i * dh + (h - 1) * sh + 1 : sh, j * dw : j * dw + (v - 1) * sw + 1 : sw]
        mixed = np.einsum("goi,ngihw->ngohw", taps[..., i, j], _split_groups(seen, groups, axis=1))
        y += mixed.reshape(y.shape)
    return y if b is None else y + np.asarray(b, np.float64)[:, None, None]


def filtered_conv_gradients(
    x: Array,
    w: Array,
    gy: Array,
    *,
    r: int,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
    mode: str,
) -> tuple[Array, Array, Array]:
    """(gx, gw, gb) of one conv2d under filtering; ValueError where the reference mode has no definition."""
    x, w, gy = (np.asarray(a, np.float64) for a in (x, w, gy))
    sizes, lengths, kernel = x.shape[2:], gy.shape[2:], w.shape[2:]
    if mode == "unbiased":
        rows, cols = (
            _unbiased_axis(*axis, r=r) for axis in zip(sizes, lengths, kernel, stride, padding, dilation, strict=True)
        )
        scale = 1.0 / prod(stride)
    elif mode == "reference":
        _check_reference_defines(w.shape, r, dilation, groups)
        rows, cols = (_reference_axis(*axis, r=r) for axis in zip(sizes, lengths, stride, dilation, strict=True))
        scale = 1.0
    else:
        raise ValueError(f"mode '{mode}' is neither 'unbiased' nor 'reference'")

    g = _patch_means(gy, rows, cols)  # [N, Co, P, Q]
    x_tilde = _patch_sums(x, rows, cols)  # [N, Ci, P, Q]
    patch_gx = _mix_channels_back(w, g, rows, cols, groups)  # [N, Ci, P, Q]
    gx = scale * _broadcast(patch_gx, x.shape, rows, cols)
    per_tap = scale * np.einsum("ngopq,ngipq->goi", _split_groups(g, groups, 1), _split_groups(x_tilde, groups, 1))
    gw = np.broadcast_to(per_tap.reshape(*w.shape[:2], 1, 1), w.shape).copy()
    return gx, gw, gy.sum(axis=(0, 2, 3))


def patch_rows(length: int, r: int) -> list[slice]:
    """The real rows of each patch; the overhang is centred, its larger half before the first row."""
    n = ceil(length / r)
    origin = -ceil((n * r - length) / 2)
    return [_clip(origin + i * r, origin + (i + 1) * r, length) for i in range(n)]


def _unbiased_axis(size: int, length: int, k: int, s: int, p: int, d: int, *, r: int) -> AxisGrid:
    middle = floor(d * (k - 1) / 2) - p
    outputs = patch_rows(length, r)
    inputs = [_clip(rows.start * s + middle, rows.stop * s + middle, size) for rows in outputs]
    return AxisGrid(outputs, inputs, sums_taps=d < r, patch_dilation=max(1, floor(d / r + 0.5)))


def _reference_axis(size: int, length: int, s: int, d: int, *, r: int) -> AxisGrid:
    outputs = patch_rows(length, r)
    window = r * s
    excess = len(outputs) * window - size
    if excess < 0:
        raise ValueError(f"reference: {len(outputs)} windows of {window} rows do not cover the {size} input rows")
    x_pad = ceil(excess / 2)
    pooled = (size + 2 * x_pad) // window
    if pooled != len(outputs):
        raise ValueError(f"reference: the input pools to {pooled} patches, the output to {len(outputs)}")
    inputs = [_clip(i * window - x_pad, (i + 1) * window - x_pad, size) for i in range(pooled)]
    return AxisGrid(outputs, inputs, sums_taps=not _is_dilated_variant(d, r), patch_dilation=d // r)


def _is_dilated_variant(d: int, r: int) -> bool:
    return d != 1 and d >= r


def _check_reference_defines(w_shape: tuple[int, ...], r: int, dilation: Pair, groups: int) -> None:
    out_channels, in_channels_per_group, *kernel = w_shape
    if groups != 1 and not (in_channels_per_group == 1 and out_channels == groups):
        raise ValueError(f"reference: groups={groups} is neither 1 nor depthwise without a multiplier")
    if not any(_is_dilated_variant(d, r) for d in dilation):
        return
    if dilation[0] != dilation[1]:
        raise ValueError(f"reference: the dilated variant needs equal dilations, not {dilation}")
    if kernel != [3, 3]:
        raise ValueError(f"reference: the dilated variant needs a 3x3 kernel, not {kernel[0]}x{kernel[1]}")


def _clip(start: int, stop: int, size: int) -> slice:
    start = min(max(start, 0), size)
    return slice(start, max(start, min(stop, size)))


def _split_groups(a: Array, groups: int, axis: int) -> Array:
    shape = a.shape
    return a.reshape(*shape[:axis], groups, shape[axis] // groups, *shape[axis + 1 :])


def _patch_means(gy: Array, rows: AxisGrid, cols: AxisGrid) -> Array:
    means = [[gy[:, :, i, j].mean(axis=(2, 3)) for j in cols.outputs] for i in rows.outputs]
    return np.moveaxis(np.array(means), (0, 1), (2, 3))


def _patch_sums(x: Array, rows: AxisGrid, cols: AxisGrid) -> Array:
    sums = [[x[:, :, i, j].sum(axis=(2, 3)) for j in cols.inputs] for i in rows.inputs]
    return np.moveaxis(np.array(sums), (0, 1), (2, 3))


def _mix_channels_back(w: Array, g: Array, rows: AxisGrid, cols: AxisGrid, groups: int) -> Array:
    """q[P] = sum_u w[u] * g[P + mid - u*dr]; an axis whose taps are summed is the case of a single tap."""
    taps = w
    for axis, grid in ((2, rows), (3, cols)):
        if grid.sums_taps:
            taps = taps.sum(axis=axis, keepdims=True)
    kh, kw = taps.shape[2:]
    taps = _split_groups(taps, groups, axis=0)  # [G, Co/G, Ci/G, kh, kw]
    batch, _, p, q = g.shape
    mixed = np.zeros((batch, groups * taps.shape[2], p, q))
    for u, v in product(range(kh), range(kw)):
        shifted = _shift(g, _tap_offset(u, kh, rows.patch_dilation), _tap_offset(v, kw, cols.patch_dilation))
        part = np.einsum("goi,ngopq->ngipq", taps[..., u, v], _split_groups(shifted, groups, axis=1))
        mixed += part.reshape(mixed.shape)
    return mixed


def _tap_offset(tap: int, k: int, patch_dilation: int) -> int:
    return floor(patch_dilation * (k - 1) / 2) - tap * patch_dilation


def _shift(g: Array, down: int, right: int) -> Array:
    """shifted[P, Q] = g[P + down, Q + right], zero outside the grid."""
    height, width = g.shape[2:]
    padded = np.pad(g, ((0, 0), (0, 0), (abs(down),) * 2, (abs(right),) * 2))
    top, left = abs(down) + down, abs(right) + right
    return padded[:, :, top : top + height, left : left + width]


def _broadcast(values: Array, shape: tuple[int, ...], rows: AxisGrid, cols: AxisGrid) -> Array:
    full = np.zeros(shape)
    for (p, i), (q, j) in product(enumerate(rows.inputs), enumerate(cols.inputs)):
        full[:, :, i, j] = values[:, :, p, q, None, None]
    return full


def philox(low: int, high: int, key: int) -> int:
    """Philox-2x32-10, one word: Salmon and others, "Parallel random numbers: as easy as 1, 2, 3"."""
    for _ in range(10):
        product = low * 0xD256D193
        low, high = (product >> 32) ^ key ^ high, product & 0xFFFFFFFF
        key = (key + 0x9E3779B9) & 0xFFFFFFFF
    return low


def drawn_channels(
    seed: int, time: int, layer: int, sets: int, candidates: int, chosen: int, width: int = 1
) -> list[int]:
    """In each set, `chosen` of `candidates`, each of `width` channels: candidate after candidate, taken with the chance
    that the wanted have among those left."""
    key = philox(time & 0xFFFFFFFF, time >> 32, seed)
    found = []
    for number in range(sets):
        wanted = chosen
        for at in range(candidates):
            candidate = number * candidates + at
            if philox(candidate, layer, key) * (candidates - at) >> 32 < wanted:
                wanted -= 1
                found += range(candidate * width, (candidate + 1) * width)
    return found
