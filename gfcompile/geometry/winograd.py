"""Winograd's minimal filtering F(m x m, 3 x 3): the three transforms, and when they pay.

    y = At [ (G w Gt) * (Bt x B) ] A      for a tile of m x m outputs, from (m + 2) x (m + 2) inputs

(m + 2)^2 multiplications instead of 9 m^2: 2.25 times fewer for m = 2, 4 times fewer for m = 4. The products over the
channels are matrix products, one for each of the (m + 2)^2 positions of a tile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import ceil

import numpy as np

KERNEL = 3
_BALANCE = 20  # multiply-adds that a small machine does while it reads one float from memory
_TILES = 10  # of the transforms, for each value of a tile, as dear as those of the products
_WEIGHTS = 8  # of the transform of weights, for each value
_MOST_PREPARED = 4 << 20  # bytes of a layer's transformed weights
_WORTH = 1.2  # how much faster it must look: below that, the plain kernel's accuracy and memory win


@dataclass(frozen=True)
class Transforms:
    """`inputs` is Bt, `weights` is G, `outputs` is At."""

    edge: int
    inputs: np.ndarray
    weights: np.ndarray
    outputs: np.ndarray

    @property
    def span(self) -> int:
        """Edge of a tile of inputs."""
        return self.edge + KERNEL - 1


# These round least of what is exact in binary: for m = 4, less than half the error of the usual 0, 1, -1, 2, -2.
_POINTS = {2: (0.0, 1.0, -1.0), 4: (0.0, 0.75, -0.75, 1.5, -1.5)}
EDGES = tuple(_POINTS)


@cache
def transforms(edge: int) -> Transforms:
    """For tiles of `edge` x `edge` outputs, 2 or 4: Toom and Cook's construction from points and infinity."""
    points = np.array(_POINTS[edge])
    others = [np.delete(points, at) for at in range(len(points))]
    scales = np.array([np.prod(point - rest) for point, rest in zip(points, others, strict=True)])
    infinity = np.eye(edge)[:, -1:]
    return Transforms(
        edge,
        inputs=np.array([*([*np.poly(rest)[::-1], 0.0] for rest in others), np.poly(points)[::-1]]),
        weights=np.vstack([points[:, None] ** np.arange(KERNEL) / scales[:, None], np.eye(KERNEL)[-1:]]),
        outputs=np.hstack([points[None, :] ** np.arange(edge)[:, None], infinity]),
    )


@dataclass(frozen=True)
class Convolution:
    """A 3x3 convolution of stride 1, which can be computed either way: all that decides which is faster."""

    size: tuple[int, int, int]  # [N, H, W] of its output
    channels: tuple[int, int]  # in, out
    padding: tuple[int, int]
    is_frozen: bool  # its weights are

    @property
    def key(self) -> str:
        """By which trials know it."""
        size, padding = ("x".join(map(str, each)) for each in (self.size, self.padding))
        weights = "frozen" if self.is_frozen else "trained"
        return f"conv 3x3 {size} {self.channels[0]}to{self.channels[1]} padding {padding} {weights}"

    def is_prepared(self, edge: int) -> bool:
        """Whether its weights are transformed at compile time."""
        return self.is_frozen and is_prepared(edge, self.channels)


Choose = Callable[[Convolution], int | None]  # the edge; None: the plain sum


def choose_edge(convolution: Convolution) -> int | None:
    """The edge, or None where the plain convolution is as good.

    Counted in multiply-adds: the products, the transforms of tiles and of weights, the traffic of weights.
    """
    size, channels = convolution.size, convolution.channels
    pixels = size[0] * size[1] * size[2]
    count = channels[0] * channels[1]
    plain = count * KERNEL**2 * (pixels + _BALANCE)
    costs = {edge: _cost(edge, size, channels) for edge in EDGES}
    best = min(costs, key=costs.__getitem__)
    return best if costs[best] * _WORTH < plain else None


def _cost(edge: int, size: tuple[int, int, int], channels: tuple[int, int]) -> float:
    tiles = size[0] * ceil(size[1] / edge) * ceil(size[2] / edge)
    area, count = transforms(edge).span ** 2, channels[0] * channels[1]
    return float(tiles * area * (count + _TILES * sum(channels)) + count * (_BALANCE * KERNEL**2 + _WEIGHTS * area))


def is_prepared(edge: int, channels: tuple[int, int]) -> bool:
    """Whether frozen weights are transformed at compile time: only where that adds little to the memory they take."""
    return 4 * transforms(edge).span ** 2 * channels[0] * channels[1] <= _MOST_PREPARED
