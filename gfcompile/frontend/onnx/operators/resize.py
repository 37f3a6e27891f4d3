"""Resize and Upsample: torch's interpolation where that is the same, else one matrix per axis, or rows picked by index.

Every mode of ONNX maps an output coordinate to an input coordinate and mixes the input values around it, axis by
axis. The sizes are known when a model is traced, so the mixture is a constant matrix [out, in].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gfcompile.frontend.onnx.graph import Node
from gfcompile.frontend.onnx.operator import Operator


@dataclass(frozen=True)
class Axis:
    """One resized axis; `scale` is the file's own, which need not be `out / size`."""

    size: int
    out: int
    scale: float


def _half_pixel(axis: Axis, x: np.ndarray) -> np.ndarray:
    return (x + 0.5) / axis.scale - 0.5


def _pytorch_half_pixel(axis: Axis, x: np.ndarray) -> np.ndarray:
    return _half_pixel(axis, x) if axis.out > 1 else np.zeros_like(x)


def _half_pixel_symmetric(axis: Axis, x: np.ndarray) -> np.ndarray:
    adjustment = axis.out / (axis.scale * axis.size)
    return axis.size / 2 * (1 - adjustment) + _half_pixel(axis, x)


def _align_corners(axis: Axis, x: np.ndarray) -> np.ndarray:
    return x * (axis.size - 1) / (axis.out - 1) if axis.out > 1 else np.zeros_like(x)


def _tf_half_pixel_for_nn(axis: Axis, x: np.ndarray) -> np.ndarray:
    return (x + 0.5) / axis.scale


def _asymmetric(axis: Axis, x: np.ndarray) -> np.ndarray:
    return x / axis.scale


COORDINATES: dict[str, Callable[[Axis, np.ndarray], np.ndarray]] = {
    "half_pixel": _half_pixel,
    "pytorch_half_pixel": _pytorch_half_pixel,
    "half_pixel_symmetric": _half_pixel_symmetric,
    "align_corners": _align_corners,
    "tf_half_pixel_for_nn": _tf_half_pixel_for_nn,
    "asymmetric": _asymmetric,
}
NEAREST: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}
MODES = {"nearest": "nearest", "linear": "linear", "bilinear": "linear", "trilinear": "linear", "cubic": "cubic"}


def _resize(
    node: Node,
    x: Tensor,
    roi: np.ndarray | None = None,
    scales: np.ndarray | None = None,
    sizes: np.ndarray | None = None,
) -> Tensor:
    named = node.get("axes", list(range(x.ndim)))
    if sizes is not None and sizes.size:
        axes = _from_sizes(node, [x.shape[axis] for axis in named], sizes.tolist())
    else:
        listed = scales if scales is not None else np.empty(0)
        axes = [Axis(x.shape[a], math.floor(x.shape[a] * s), s) for a, s in zip(named, listed.tolist())]
    mode = MODES[node.get("mode", "nearest")]
    coordinates = node.get("coordinate_transformation_mode", "half_pixel")
    return _resample(node, x, {a % x.ndim: axis for a, axis in zip(named, axes)}, mode, coordinates)


def _upsample(node: Node, x: Tensor, scales: np.ndarray | None = None) -> Tensor:
    """Upsample, and Resize in opset 10: coordinates are asymmetric, rounded down."""
    listed = node.get("scales") if scales is None else scales.tolist()
    axes = {a: Axis(size, math.floor(size * s), s) for a, (size, s) in enumerate(zip(x.shape, listed))}
    return _resample(node, x, axes, MODES[node.get("mode", "nearest")], "asymmetric", "floor")


def _from_sizes(node: Node, sizes: list[int], wanted: list[int]) -> list[Axis]:
    policy = node.get("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return [Axis(size, out, out / size) for size, out in zip(sizes, wanted)]
    scale = (min if policy == "not_larger" else max)(out / size for size, out in zip(sizes, wanted))
    return [Axis(size, math.floor(size * scale + 0.5), scale) for size in sizes]


def _resample(
    node: Node, x: Tensor, axes: dict[int, Axis], mode: str, coordinates: str, rounding: str | None = None
) -> Tensor:
    axes = {number: axis for number, axis in axes.items() if axis.size != axis.out or axis.scale != 1}
    rounding = rounding or node.get("nearest_mode", "round_prefer_floor")
    torch_mode = _torch_mode(node, mode, coordinates, rounding)
    is_image = x.ndim == 4 and set(axes) <= {2, 3} and all(_is_exact(axis) for axis in axes.values())
    if axes and torch_mode is not None and is_image and all(axis.out > 1 for axis in axes.values()):
        size = [axes[number].out if number in axes else x.shape[number] for number in (2, 3)]
        align = {} if torch_mode.startswith("nearest") else {"align_corners": coordinates == "align_corners"}
        return F.interpolate(x, size, mode=torch_mode, **align)
    for number, axis in axes.items():
        # in float32, as runtimes compute it: at ties the rounding decides which row is nearest
        source = COORDINATES[coordinates](axis, np.arange(axis.out, dtype=np.float32))
        if mode == "nearest":
            rows = np.clip(NEAREST[rounding](source), 0, axis.size - 1).astype(np.int64)
            x = x.index_select(number, torch.from_numpy(rows))
        else:
            matrix = torch.from_numpy(_mixture(node, axis, source, mode).astype(np.float32))
            x = torch.matmul(x.movedim(number, -1), matrix.t()).movedim(-1, number)
    return x


def _torch_mode(node: Node, mode: str, coordinates: str, rounding: str) -> str | None:
    """torch's name for the same interpolation of images."""
    if mode == "nearest":
        known = {
            ("asymmetric", "floor"): "nearest",
            ("half_pixel", "round_prefer_ceil"): "nearest-exact",
            ("pytorch_half_pixel", "round_prefer_ceil"): "nearest-exact",
        }
        return known.get((coordinates, rounding))
    if coordinates not in ("half_pixel", "pytorch_half_pixel", "align_corners") or node.get("exclude_outside", 0):
        return None
    if mode == "linear":
        return "bilinear"
    return "bicubic" if node.get("cubic_coeff_a", -0.75) == -0.75 else None


def _is_exact(axis: Axis) -> bool:
    """Whether the scale is that of the sizes, from which torch computes its own."""
    return math.isclose(axis.scale, axis.out / axis.size, rel_tol=1e-6)


def _mixture(node: Node, axis: Axis, source: np.ndarray, mode: str) -> np.ndarray:
    """How much of each input goes into each output, [out, in]; taps outside read the border."""
    floor = np.floor(source).astype(np.int64)
    part = source - floor
    if mode == "linear":
        taps, weights = [0, 1], [1 - part, part]
    else:
        taps = [-1, 0, 1, 2]
        weights = [_cubic(np.abs(part - tap), node.get("cubic_coeff_a", -0.75)) for tap in taps]
    matrix = np.zeros((axis.out, axis.size))
    for tap, weight in zip(taps, weights):
        column = floor + tap
        if node.get("exclude_outside", 0):
            weight = np.where((column < 0) | (column >= axis.size), 0.0, weight)
        np.add.at(matrix, (np.arange(axis.out), np.clip(column, 0, axis.size - 1)), weight)
    return matrix / matrix.sum(1, keepdims=True)


def _cubic(distance: np.ndarray, a: float) -> np.ndarray:
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return np.where(distance <= 1, near, far)


def _refuse(node: Node) -> str | None:
    mode, coordinates = node.get("mode", "nearest"), node.get("coordinate_transformation_mode", "half_pixel")
    if mode not in MODES:
        return f"mode '{mode}' is not known"
    if coordinates not in COORDINATES:
        return f"coordinate_transformation_mode '{coordinates}' cannot be expressed"
    return "antialias is not known" if node.get("antialias", 0) else None


def _resize_any(node: Node, x: Tensor, *sizes: np.ndarray) -> Tensor:
    return (_resize if node.opset >= 11 else _upsample)(node, x, *sizes)


_SIZES = frozenset({1, 2, 3})
OPERATORS = {
    "Resize": Operator(_resize_any, host=_SIZES, refuse=_refuse),
    "Upsample": Operator(_upsample, host=_SIZES, refuse=_refuse),
}
