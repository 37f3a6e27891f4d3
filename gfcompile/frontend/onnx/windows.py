"""Sliding windows of convolutions and poolings: ONNX's attributes as explicit padding before and after each axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from gfcompile.frontend.onnx.graph import Node

Pads = tuple[tuple[int, int], ...]  # before and after, per axis


@dataclass(frozen=True)
class Windows:
    """The windows over one input's spatial axes; `overhang`: what the last one of ceil_mode reads beyond `pads`."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: Pads
    sizes: tuple[int, ...]
    ceil_mode: bool = False

    @property
    def extents(self) -> tuple[int, ...]:
        """What a window covers of each axis, with its dilation."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations))

    @property
    def symmetric(self) -> tuple[int, ...] | None:
        """The padding where it is the same on both sides, as torch takes it."""
        return tuple(before for before, _ in self.pads) if all(b == a for b, a in self.pads) else None

    @property
    def counts(self) -> tuple[int, ...]:
        """How many windows each axis has; one that would begin after input and padding before it does not count."""
        counts = []
        for axis, (before, after) in enumerate(self.pads):
            stride = self.strides[axis]
            room = self.sizes[axis] + before + after - self.extents[axis]
            count = (-(-room // stride) if self.ceil_mode else room // stride) + 1
            if self.ceil_mode and (count - 1) * stride >= self.sizes[axis] + before:
                count -= 1
            counts.append(count)
        return tuple(counts)

    @property
    def overhang(self) -> tuple[int, ...]:
        """How far the last window of each axis reaches past the padded input."""
        ends = [(n - 1) * s + e for n, s, e in zip(self.counts, self.strides, self.extents)]
        return tuple(max(end - sum(p) - size, 0) for end, p, size in zip(ends, self.pads, self.sizes))


def windows_of(node: Node, sizes: Sequence[int], kernel: Sequence[int]) -> Windows:
    """The windows a Conv or pooling node lays over an input of these spatial sizes."""
    rank = len(kernel)
    strides = tuple(node.get("strides", [1] * rank))
    dilations = tuple(node.get("dilations", [1] * rank))
    flat = node.get("pads", [0] * 2 * rank)
    pads = tuple(zip(flat[:rank], flat[rank:]))
    auto = node.get("auto_pad", "NOTSET")
    if auto == "VALID":
        pads = ((0, 0),) * rank
    elif auto in ("SAME_UPPER", "SAME_LOWER"):
        totals = [
            max((-(-size // s) - 1) * s + (k - 1) * d + 1 - size, 0)
            for size, s, k, d in zip(sizes, strides, kernel, dilations)
        ]
        pads = tuple(halves(total, auto) for total in totals)
    is_ceil = bool(node.get("ceil_mode", 0)) and auto == "NOTSET"
    return Windows(tuple(kernel), strides, dilations, pads, tuple(sizes), is_ceil)


def halves(total: int, auto: str) -> tuple[int, int]:
    """Padding split over both sides; SAME_UPPER puts the odd one after."""
    less = total // 2
    return (less, total - less) if auto != "SAME_LOWER" else (total - less, less)


def pad(x: Tensor, pads: Sequence[tuple[int, int]], value: float = 0.0) -> Tensor:
    """Pad the last axes; a negative width crops."""
    flat = [width for axis in reversed(pads) for width in axis]
    return F.pad(x, flat, value=value) if any(flat) else x
