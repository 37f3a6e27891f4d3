"""Convolution geometry and the patch windows of gradient filtering (docs/method.md, section 1), one axis at a time."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

Shaped = Any  # whatever has a shape


@dataclass(frozen=True)
class Windows:
    """Patches along one axis: patch P covers [P*pitch + origin, (P+1)*pitch + origin), clipped to [lo, hi)."""

    count: int
    pitch: int
    origin: int
    lo: int
    hi: int

    def as_list(self) -> list[int]:
        """The form in which windows travel as an argument of the gf operators."""
        return [self.count, self.pitch, self.origin, self.lo, self.hi]

    def spans(self) -> list[tuple[int, int]]:
        """Clipped [start, stop) of every patch; empty patches have start == stop."""
        starts = [patch * self.pitch + self.origin for patch in range(self.count)]
        clipped = [(max(start, self.lo), min(start + self.pitch, self.hi)) for start in starts]
        return [(start, max(start, stop)) for start, stop in clipped]


@dataclass(frozen=True)
class ConvGeometry:
    """Shapes and hyper-parameters of one two-dimensional convolution; pairs are (rows, columns)."""

    batch: int
    in_channels: int
    out_channels: int
    in_size: tuple[int, int]
    out_size: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int

    @classmethod
    def of(cls, x: Shaped, w: Shaped, y: Shaped, stride: Any, padding: Any, dilation: Any, groups: int) -> ConvGeometry:
        """From a convolution's (possibly fake) tensors in NCHW; one number stands for both axes."""
        return cls(
            batch=x.shape[0],
            in_channels=x.shape[1],
            out_channels=w.shape[0],
            in_size=(x.shape[2], x.shape[3]),
            out_size=(y.shape[2], y.shape[3]),
            kernel=(w.shape[2], w.shape[3]),
            stride=(stride[0], stride[-1]),
            padding=(padding[0], padding[-1]),
            dilation=(dilation[0], dilation[-1]),
            groups=groups,
        )

    @property
    def is_depthwise(self) -> bool:
        """One input and one output channel per group."""
        return self.groups > 1 and self.groups == self.in_channels == self.out_channels


def output_windows(size: int, r: int) -> Windows:
    """The grid over a convolution's output: ceil(size/r) patches, the overhang centred."""
    count = ceil(size / r)
    return Windows(count, r, -ceil((count * r - size) / 2), 0, size)


def input_windows(geometry: ConvGeometry, axis: int, r: int) -> Windows:
    """What a patch's real output rows see through the middle tap (the unbiased mode)."""
    out, stride = geometry.out_size[axis], geometry.stride[axis]
    grid = output_windows(out, r)
    middle = geometry.dilation[axis] * (geometry.kernel[axis] - 1) // 2 - geometry.padding[axis]
    return Windows(
        grid.count,
        r * stride,
        grid.origin * stride + middle,
        max(0, middle),
        max(0, min(geometry.in_size[axis], out * stride + middle)),
    )


def reference_input_windows(geometry: ConvGeometry, axis: int, r: int) -> Windows:
    """The published code's input grid: centred on the input, whatever the padding."""
    count, pitch, size = ceil(geometry.out_size[axis] / r), r * geometry.stride[axis], geometry.in_size[axis]
    return Windows(count, pitch, -ceil((count * pitch - size) / 2), 0, size)


def mix_dilation(geometry: ConvGeometry, axis: int, r: int) -> int:
    """Dilation of the kernel on the patch grid, or 0 where its taps are summed (they share a patch: d < r)."""
    dilation = geometry.dilation[axis]
    if geometry.kernel[axis] == 1 or dilation < r:
        return 0
    return max(1, int(dilation / r + 0.5))


def reference_mix_dilation(geometry: ConvGeometry, r: int) -> int:
    """The published dilated variant: used where d != 1 and d >= r."""
    dilation = geometry.dilation[0]
    return dilation // r if dilation != 1 and dilation >= r else 0


def why_reference_refuses(geometry: ConvGeometry, r: int) -> str | None:
    """Geometries for which the published formulas are not defined (its code crashes there)."""
    if geometry.groups != 1 and not geometry.is_depthwise:
        return f"the reference formulas know groups=1 and depthwise only, not groups={geometry.groups}"
    if any(
        ceil(o / r) * r * s < i for o, s, i in zip(geometry.out_size, geometry.stride, geometry.in_size, strict=True)
    ):
        return "the reference formulas have no window for input rows beyond the output's patches ('valid' padding)"
    for axis in (0, 1):
        windows, size = reference_input_windows(geometry, axis, r), geometry.in_size[axis]
        if (size - 2 * windows.origin) // windows.pitch != windows.count:
            return "the reference formulas cut the input into more patches than the output here"
    if geometry.dilation[0] != geometry.dilation[1] and max(geometry.dilation) >= r:
        return f"the reference formulas know one dilation for both axes, not {geometry.dilation}"
    if reference_mix_dilation(geometry, r) and geometry.kernel != (3, 3):
        return f"the reference formulas define dilated filtering for 3x3 kernels only, not {geometry.kernel}"
    return None
