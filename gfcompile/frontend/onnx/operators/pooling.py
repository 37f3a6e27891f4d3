"""Pooling: torch's own where it can take the padding, sums over explicit windows otherwise."""

from __future__ import annotations

import functools

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gfcompile.frontend.onnx.graph import Node
from gfcompile.frontend.onnx.operator import Operator
from gfcompile.frontend.onnx.windows import Windows, pad, windows_of

_MAX = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_AVERAGE = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
_CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def _max_pool(node: Node, x: Tensor) -> Tensor:
    windows, pool = _windows(node, x), _MAX[x.ndim - 2]
    padding = _torch_padding(windows)
    if padding is None:
        x = pad(x, _pads_with_overhang(windows), float("-inf"))
        return pool(x, windows.kernel, windows.strides, 0, windows.dilations)
    return pool(x, windows.kernel, windows.strides, padding, windows.dilations, windows.ceil_mode)


def _average_pool(node: Node, x: Tensor) -> Tensor:
    windows, includes_pads = _windows(node, x), bool(node.get("count_include_pad", 0))
    padding = _torch_padding(windows)
    if padding is not None and set(windows.dilations) == {1}:
        pool = _AVERAGE[x.ndim - 2]
        return pool(x, windows.kernel, windows.strides, padding, windows.ceil_mode, includes_pads)
    return _window_sums(windows, x) / torch.from_numpy(_elements_counted(windows, includes_pads))


def _lp_pool(node: Node, x: Tensor) -> Tensor:
    p = node.get("p", 2)
    return _window_sums(_windows(node, x), x.abs() ** p) ** (1 / p)


def _windows(node: Node, x: Tensor) -> Windows:
    return windows_of(node, x.shape[2:], node.get("kernel_shape"))


def _torch_padding(windows: Windows) -> tuple[int, ...] | None:
    """The padding as torch's poolings take it: symmetric, at most half a window."""
    padding = windows.symmetric
    return padding if padding is not None and all(p <= k // 2 for p, k in zip(padding, windows.kernel)) else None


def _pads_with_overhang(windows: Windows) -> list[tuple[int, int]]:
    return [(before, after + more) for (before, after), more in zip(windows.pads, windows.overhang)]


def _window_sums(windows: Windows, x: Tensor) -> Tensor:
    """A depthwise convolution with ones."""
    channels = x.shape[1]
    ones = torch.ones(channels, 1, *windows.kernel)
    x = pad(x, _pads_with_overhang(windows))
    return _CONVOLUTIONS[x.ndim - 2](x, ones, None, windows.strides, 0, windows.dilations, channels)


def _elements_counted(windows: Windows, includes_pads: bool) -> np.ndarray:
    """How many elements an average divides by, per window; never what ceil_mode reads beyond the padding."""
    counts = []
    for axis, (before, after) in enumerate(windows.pads):
        starts = np.arange(windows.counts[axis])[:, None] * windows.strides[axis] - before
        taps = starts + np.arange(windows.kernel[axis]) * windows.dilations[axis]
        low, high = (-before, windows.sizes[axis] + after) if includes_pads else (0, windows.sizes[axis])
        counts.append(((taps >= low) & (taps < high)).sum(1))
    return functools.reduce(np.multiply.outer, counts).astype(np.float32)


def _spatial(x: Tensor) -> list[int]:
    return list(range(2, x.ndim))


def _unknown_pool(node: Node) -> str | None:
    rank = len(node.get("kernel_shape", ()))
    return None if 1 <= rank <= 3 else f"it pools over {rank} axes"


OPERATORS = {
    "MaxPool": Operator(_max_pool, refuse=_unknown_pool),
    "AveragePool": Operator(_average_pool, refuse=_unknown_pool),
    "LpPool": Operator(_lp_pool, refuse=_unknown_pool),
    "GlobalAveragePool": Operator(lambda node, x: x.mean(_spatial(x), keepdim=True)),
    "GlobalMaxPool": Operator(lambda node, x: x.amax(_spatial(x), keepdim=True)),
    "GlobalLpPool": Operator(
        lambda node, x: torch.linalg.vector_norm(x, node.get("p", 2), dim=_spatial(x), keepdim=True)
    ),
}
