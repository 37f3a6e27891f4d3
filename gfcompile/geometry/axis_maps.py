"""Linear maps along one axis of a tensor: resizing and padding, as PyTorch does them.

`F.interpolate` and the padding modes are separable: each axis is multiplied by a sparse matrix of its own. The
matrices are read off PyTorch's operators by handing them the unit vectors, so that no coefficient is ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

aten = torch.ops.aten
WIDTH = 2  # of the images with the unit vectors: of one column, PyTorch's antialiasing resizes give garbage


@dataclass(frozen=True)
class Taps:
    """The rows of a sparse matrix: output element `o` is the sum over k of `weight[o, k] * x[index[o, k]]`."""

    index: np.ndarray  # int32 [size, K]
    weight: np.ndarray  # float32 [size, K], zero where a row has fewer than K entries


@lru_cache(maxsize=256)
def matrix(kind: str, settings: tuple[float, ...], length: int, size: int) -> Tensor:
    """[size, length] in float32: what the map does to each unit vector."""
    units = torch.eye(length).reshape(1, length, length, 1)  # [1, which unit, position, 1]
    result = _MAPS[kind](units.repeat(1, 1, 1, WIDTH), size, *settings)[..., 0]
    return result.reshape(length, size).T.contiguous()


@lru_cache(maxsize=256)
def taps(kind: str, settings: tuple[float, ...], length: int, size: int, transposed: bool) -> Taps:
    """The map as taps, or its transpose: the gradient's way back."""
    dense = matrix(kind, settings, length, size).numpy()
    if transposed:
        dense = dense.T
    most = max(1, int((dense != 0).sum(axis=1).max()))
    order = np.argsort(dense == 0, axis=1, kind="stable")[:, :most]  # the entries of each row first
    return Taps(order.astype(np.int32), np.take_along_axis(dense, order, axis=1))


def _resize(resize: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Settings of a resize: align_corners (0 or 1), and the scale that the user gave (0: none)."""

    def apply(x: Tensor, size: int, align: float, scale: float) -> Tensor:
        return resize(x, [size, WIDTH], bool(align), scale or None)

    return apply


def _pad(mode: str) -> Callable[..., Tensor]:
    """Settings of a padding: how many elements before and after; negative ones crop."""

    def apply(x: Tensor, size: int, before: float, after: float) -> Tensor:
        cropped = F.pad(x, [0, 0, min(0, int(before)), min(0, int(after))])
        return F.pad(cropped, [0, 0, max(0, int(before)), max(0, int(after))], mode=mode)

    return apply


_MAPS: dict[str, Callable[..., Tensor]] = {
    "nearest": _resize(lambda x, size, _, scale: aten.upsample_nearest2d(x, size, scale, None)),
    "nearest-exact": _resize(lambda x, size, _, scale: aten._upsample_nearest_exact2d(x, size, scale, None)),
    "linear": _resize(lambda x, size, align, scale: aten.upsample_bilinear2d(x, size, align, scale, None)),
    "cubic": _resize(lambda x, size, align, scale: aten.upsample_bicubic2d(x, size, align, scale, None)),
    "linear-antialias": _resize(lambda x, size, align, scale: aten._upsample_bilinear2d_aa(x, size, align, scale)),
    "cubic-antialias": _resize(lambda x, size, align, scale: aten._upsample_bicubic2d_aa(x, size, align, scale)),
    "reflect": _pad("reflect"),
    "replicate": _pad("replicate"),
    "circular": _pad("circular"),
}
