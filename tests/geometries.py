"""Hypothesis strategies over every conv2d geometry the method covers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from hypothesis import strategies as st

Pair = tuple[int, int]

MAX_SIZE = 33


class ConvArguments(TypedDict):
    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int


@dataclass(frozen=True)
class Geometry:
    batch: int
    in_channels: int
    out_channels: int
    height: int
    width: int
    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int
    r: int

    @property
    def conv_arguments(self) -> ConvArguments:
        return {"stride": self.stride, "padding": self.padding, "dilation": self.dilation, "groups": self.groups}

    @property
    def input_shape(self) -> tuple[int, int, int, int]:
        return self.batch, self.in_channels, self.height, self.width

    @property
    def weight_shape(self) -> tuple[int, int, int, int]:
        return self.out_channels, self.in_channels // self.groups, *self.kernel

    @property
    def output_shape(self) -> tuple[int, int, int, int]:
        axes = zip((self.height, self.width), self.kernel, self.stride, self.padding, self.dilation, strict=True)
        height, width = ((size + 2 * p - d * (k - 1) - 1) // s + 1 for size, k, s, p, d in axes)
        return self.batch, self.out_channels, height, width


@dataclass(frozen=True)
class Channels:
    groups: int
    in_per_group: int
    out_per_group: int


def _pairs(low: int, high: int) -> st.SearchStrategy[Pair]:
    values = st.integers(low, high)
    return values.map(lambda v: (v, v)) | st.tuples(values, values)


def _channels() -> st.SearchStrategy[Channels]:
    dense = st.builds(Channels, st.just(1), st.integers(1, 6), st.integers(1, 6))
    depthwise = st.builds(Channels, st.integers(2, 8), st.just(1), st.just(1))
    general = st.builds(Channels, st.integers(2, 4), st.integers(2, 3), st.integers(1, 3))
    multiplier = st.builds(Channels, st.integers(2, 4), st.just(1), st.integers(2, 3))
    return dense | depthwise | general | multiplier


@st.composite
def conv_geometries(draw: st.DrawFn) -> Geometry:
    """A valid conv2d (output at least 1x1) with a patch edge; the patch may exceed the output."""
    kernel, dilation = draw(_pairs(1, 7)), draw(_pairs(1, 4))
    reaches = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    vertical, horizontal = (
        draw(st.sampled_from((0, reach // 2, k - 1)) | st.integers(0, max(reach // 2, k - 1)))
        for reach, k in zip(reaches, kernel, strict=True)
    )
    height, width = (
        draw(st.integers(max(1, reach + 1 - 2 * p), MAX_SIZE))
        for reach, p in zip(reaches, (vertical, horizontal), strict=True)
    )
    channels = draw(_channels())
    return Geometry(
        batch=draw(st.integers(1, 3)),
        in_channels=channels.groups * channels.in_per_group,
        out_channels=channels.groups * channels.out_per_group,
        height=height,
        width=width,
        kernel=kernel,
        stride=draw(_pairs(1, 3)),
        padding=(vertical, horizontal),
        dilation=dilation,
        groups=channels.groups,
        r=draw(st.integers(1, 8)),
    )
