"""Winograd convolutions, NHWC: stages that the schedule arranges around a block of tiles."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import te, tirx

from gfcompile.codegen.kernels.stage import Pair, out_extent
from gfcompile.geometry.winograd import KERNEL, transforms


def winograd_conv2d(x: te.Tensor, u: te.Tensor, padding: Pair, edge: int) -> te.Tensor:
    """x [N,H,W,Ci], u [span^2,Co/kb,Ci,kb] -> [N,OH,OW,Co]; tiles are numbered row by row, image after image.

    With packed weights [Co/kb,3,3,Ci,kb] in the place of u, these are transformed on the way.
    """
    n, h, w, ci = (int(d) for d in x.shape)
    u = u if len(u.shape) == 4 else transform_weights(u, edge)
    _, blocks, _, kb = (int(d) for d in u.shape)
    tables, co = transforms(edge), blocks * kb
    span = tables.span
    oh, ow = (out_extent(size, KERNEL, 1, pad, 1) for size, pad in zip((h, w), padding, strict=True))
    high, wide = -(-oh // edge), -(-ow // edge)
    tiles = n * high * wide

    def pixel(line: Any, i: Any, j: Any, c: Any) -> Any:
        row, col = line % high * edge + i - padding[0], j - padding[1]
        inside = tirx.all(row >= 0, row < h, col >= 0, col < w)
        return tirx.if_then_else(inside, x[line // high, row, col, c], 0.0)

    band = te.compute((n * high, span, wide * edge + 2, ci), pixel, name="winograd_band")  # of each line of tiles
    tile = te.compute(
        (tiles, span, span, ci),
        lambda t, i, j, c: band[t // wide, i, t % wide * edge + j, c],
        name="winograd_tile",
    )
    down = te.compute(
        (tiles, span, span, ci),
        lambda t, i, j, c: _row(tables.inputs, i, lambda k: tile[t, k, j, c]),
        name="winograd_down",
    )
    v = te.compute(
        (span, span, tiles, ci),
        lambda i, j, t, c: _row(tables.inputs, j, lambda k: down[t, i, k, c]),
        name="winograd_input",
    )
    rc = te.reduce_axis((0, ci), "rc")
    m = te.compute(
        (span, span, tiles, co),
        lambda i, j, t, o: te.sum(v[i, j, t, rc] * u[i * span + j, o // kb, rc, o % kb], axis=[rc]),
        name="winograd_product",
    )
    up = te.compute(
        (tiles, edge, span, co),
        lambda t, i, j, o: _row(tables.outputs, i, lambda k: m[k, j, t, o]),
        name="winograd_up",
    )
    y = te.compute(
        (n, high * edge, wide * edge, co),
        lambda b, i, j, o: _row(
            tables.outputs, j % edge, lambda k: up[(b * high + i // edge) * wide + j // edge, i % edge, k, o]
        ),
        name="winograd_output",
    )
    if (oh, ow) == (high * edge, wide * edge):
        return y
    return te.compute((n, oh, ow, co), lambda *at: y[at], name="winograd_crop")


def transform_weights(w: te.Tensor, edge: int) -> te.Tensor:
    """w [Co/kb,3,3,Ci,kb] -> [span^2,Co/kb,Ci,kb]."""
    blocks, _, _, ci, kb = (int(d) for d in w.shape)
    matrix, span = transforms(edge).weights, transforms(edge).span
    down = te.compute(
        (blocks, ci, span, KERNEL, kb),
        lambda o, c, i, j, lane: _row(matrix, i, lambda k: w[o, k, j, c, lane]),
        name="winograd_weight_down",
    )
    return te.compute(
        (span * span, blocks, ci, kb),
        lambda f, o, c, lane: _row(matrix, f % span, lambda k: down[o, c, f // span, k, lane]),
        name="winograd_weight",
    )


def _row(matrix: np.ndarray, index: Any, term: Callable[[int], Any]) -> Any:
    """Row `index` of the matrix times the vector of terms: once `index` is unrolled, one choice is left."""
    *others, value = (_combine(row, term) for row in matrix)
    for at, other in reversed(list(enumerate(others))):
        value = tirx.Select(index == at, other, value)
    return value


def _combine(factors: Sequence[float], term: Callable[[int], Any]) -> Any:
    parts = [(float(factor), term(at)) for at, factor in enumerate(factors) if factor]
    scaled = [value if factor == 1 else -value if factor == -1 else value * factor for factor, value in parts]
    return sum(scaled[1:], scaled[0])
