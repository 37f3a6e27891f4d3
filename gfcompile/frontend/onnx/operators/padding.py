"""Pad: constant, and by repeating the input's own rows."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gfcompile.frontend.onnx.graph import Node
from gfcompile.frontend.onnx.operator import Operator
from gfcompile.frontend.onnx.windows import pad

_TORCH_MODES = {"reflect": "reflect", "edge": "replicate", "wrap": "circular"}


def _pad(
    node: Node,
    x: Tensor,
    pads: np.ndarray | None = None,
    value: np.ndarray | None = None,
    axes: np.ndarray | None = None,
) -> Tensor:
    flat = node.get("pads") if pads is None else pads.tolist()
    named = list(range(x.ndim)) if axes is None else [axis % x.ndim for axis in axes.tolist()]
    widths = [(0, 0)] * x.ndim
    for axis, before, after in zip(named, flat[: len(named)], flat[len(named) :]):
        widths[axis] = (before, after)
    mode = node.get("mode", "constant")
    if mode == "constant":
        return pad(x, widths, node.get("value", 0.0) if value is None else value.item())
    x = pad(x, [(min(before, 0), min(after, 0)) for before, after in widths])
    widths = [(max(before, 0), max(after, 0)) for before, after in widths]
    if x.ndim == 4 and widths[:2] == [(0, 0)] * 2 and all(max(w) < size for w, size in zip(widths, x.shape)):
        return F.pad(x, [*widths[3], *widths[2]], mode=_TORCH_MODES[mode])
    for axis, width in enumerate(widths):
        if width != (0, 0):
            rows = np.pad(np.arange(x.shape[axis]), width, mode=mode)
            x = x.index_select(axis, torch.from_numpy(rows))
    return x


def _unknown_mode(node: Node) -> str | None:
    mode = node.get("mode", "constant")
    return None if mode == "constant" or mode in _TORCH_MODES else f"mode '{mode}' is not known"


OPERATORS = {"Pad": Operator(_pad, host=frozenset({1, 2, 3}), refuse=_unknown_mode)}
