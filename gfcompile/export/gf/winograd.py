"""Winograd convolutions: standard ONNX has none, so the weights are turned back, as in eager mode."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gfcompile.export.aten.convolution import geometry
from gfcompile.export.emitter import Emitter, Value
from gfcompile.export.gf.images import from_nchw, to_nchw, unpacked
from gfcompile.export.table import Table
from gfcompile.geometry.layouts import block_size
from gfcompile.geometry.winograd import transforms
from gfcompile.ops import gf
from gfcompile.ops.winograd import PACKED, packed_shape

TABLE = Table()


@TABLE.writes(gf.winograd_weight.default)
def _weight(to: Emitter, out: Value, w: Value, shape: Sequence[int], edge: int) -> str:
    matrix = to.constant(transforms(edge).weights.astype(np.float32))
    turned = to.op("Einsum", matrix, unpacked(to, w, shape, 1), matrix, equation="ai,ocij,bj->aboc")
    block = block_size(shape[0])
    split = to.op("Reshape", turned, [-1, shape[0] // block, block, shape[1]])
    return to.op("Transpose", split, perm=[0, 1, 3, 2])


@TABLE.writes(gf.winograd_conv2d_nhwc.default)
def _conv2d(to: Emitter, out: Value, x: Value, w: Value, padding: Sequence[int], edge: int) -> str:
    weight = unpacked(to, w, packed_shape(w.shape), 1) if w.rank == PACKED else _turned_back(to, w, edge)
    return from_nchw(to, to.op("Conv", to_nchw(to, x), weight, **geometry(2, [1, 1], padding, [1, 1], 1)))


def _turned_back(to: Emitter, u: Value, edge: int) -> str:
    span, (_, blocks, inputs, block) = transforms(edge).span, u.shape
    back = to.constant(np.linalg.pinv(transforms(edge).weights).astype(np.float32))
    square = to.op("Reshape", to.op("Transpose", u, perm=[0, 1, 3, 2]), [span, span, blocks * block, inputs])
    return to.op("Einsum", back, square, back, equation="ia,aboc,jb->ocij")
