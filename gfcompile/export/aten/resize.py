"""Resizing of images; a gradient multiplies by the transposed matrix of each axis (`axis_maps`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from gfcompile.export.emitter import Emitter, Value
from gfcompile.export.table import Table
from gfcompile.geometry.axis_maps import matrix

aten = torch.ops.aten
TABLE = Table()
NEAREST = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
LINEAR = {"mode": "linear"}
CUBIC = {"mode": "cubic", "cubic_coeff_a": -0.75}  # PyTorch's coefficient


@TABLE.writes(aten.upsample_nearest2d.vec, aten.upsample_nearest2d.default)
def _nearest(to: Emitter, out: Value, x: Value, size: Any, *scales: Any) -> str:
    return _resize(to, out, x, NEAREST, scales)


@TABLE.writes(aten.upsample_bilinear2d.vec, aten.upsample_bilinear2d.default)
def _bilinear(to: Emitter, out: Value, x: Value, size: Any, align: bool, *scales: Any) -> str:
    return _resize(to, out, x, {**LINEAR, **_corners(align)}, scales)


@TABLE.writes(aten.upsample_bicubic2d.vec, aten.upsample_bicubic2d.default)
def _bicubic(to: Emitter, out: Value, x: Value, size: Any, align: bool, *scales: Any) -> str:
    return _resize(to, out, x, {**CUBIC, **_corners(align)}, scales)


def _corners(align: bool) -> dict[str, str]:
    return {"coordinate_transformation_mode": "align_corners" if align else "half_pixel"}


def _resize(to: Emitter, out: Value, x: Value, settings: dict[str, Any], scales: Sequence[Any]) -> str:
    """By the factors that the user gave, which decide where a pixel is read; else by the sizes."""
    factors = _factors(scales)
    if factors is not None:
        return to.op("Resize", x, None, np.array(factors, dtype=np.float32), axes=[2, 3], **settings)
    return to.op("Resize", x, None, None, out.shape[2:], axes=[2, 3], **settings)


def _factors(scales: Sequence[Any]) -> Sequence[float] | None:
    """One list of factors in the operators that take either, two numbers in the others."""
    given = scales[0] if len(scales) == 1 else scales
    return None if not given or None in given else given


@TABLE.writes(aten.upsample_nearest2d_backward.default)
def _nearest_backward(to: Emitter, out: Value, gy: Value, size: Any, input_size: Any, *scales: float | None) -> str:
    return _transposed(to, out, gy, "nearest", False, scales)


@TABLE.writes(aten.upsample_bilinear2d_backward.default)
def _bilinear_backward(
    to: Emitter, out: Value, gy: Value, size: Any, input_size: Any, align: bool, *scales: float | None
) -> str:
    return _transposed(to, out, gy, "linear", align, scales)


def _transposed(to: Emitter, out: Value, gy: Value, kind: str, align: bool, scales: Sequence[float | None]) -> str:
    rows, cols = (
        matrix(kind, (float(align), factor or 0.0), small, large).numpy()
        for small, large, factor in zip(out.shape[2:], gy.shape[2:], scales or (None, None), strict=True)
    )
    return to.op("MatMul", to.op("MatMul", np.ascontiguousarray(rows.T), gy), cols)
