"""FLOPs and bytes of one convolution, counted from its shapes by the gradient-filtering paper's equations.

Equation numbers are the paper's; C_x and C_y are the channels of a group. All counts are for the whole batch, while the
paper's are for one image. A multiplication and an addition are two operations.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from gfcompile.geometry.convolution import ConvGeometry
from gfcompile.geometry.filtering import FilterRecipe

FLOAT_BYTES = 4


@dataclass(frozen=True)
class Flops:
    """The convolution, its two gradients, and what filtering adds to either pass."""

    forward: int
    input_gradient: int
    weight_gradient: int
    forward_overhead: int = 0
    backward_overhead: int = 0

    @property
    def backward(self) -> int:
        """Both gradients, and the additional work on the way."""
        return self.input_gradient + self.weight_gradient + self.backward_overhead

    @property
    def total(self) -> int:
        """Forward and backward, additional work included."""
        return self.forward + self.forward_overhead + self.backward


def patches(geometry: ConvGeometry, r: int) -> int:
    """Patches of one output plane: ceil(H_y/r) * ceil(W_y/r)."""
    return prod(-(-size // r) for size in geometry.out_size)


def exact_flops(geometry: ConvGeometry, input_gradient: bool = True, channels: int | None = None) -> Flops:
    """Equation (1), 2 C_x C_y W_y H_y W_k H_k: the same for y, for g_x, and for g_w by equation (4).

    Of drawn `channels` only, g_w is their part.
    """
    pairs = geometry.groups * _group_pairs(geometry)
    one = 2 * geometry.batch * pairs * prod(geometry.out_size) * prod(geometry.kernel)
    drawn = one * (channels or geometry.in_channels) // geometry.in_channels
    return Flops(forward=one, input_gradient=one if input_gradient else 0, weight_gradient=drawn)


def filtered_flops(
    geometry: ConvGeometry,
    r: int,
    reference: bool = False,
    input_gradient: bool = True,
    channels: int | None = None,
) -> Flops:
    """Equation (15) for g_x, equation (5) for g_w, and the overhead of section 4.2; r = the whole map gives (16).

    Overhead, additions only as the paper counts it: forward the patch sums of x (about 1/(2 C_y W_k H_k) of the
    forward pass); backward the patch means of g_y (about (r^2 - 1)/(2 C_x) of g_x) and the kernel's sum over its taps.
    Where the dilation reaches the patch edge, taps land in different patches and (15) has one term per tap. Of drawn
    `channels` only, g_w and the patch sums are their part.
    """
    batch, groups = geometry.batch, geometry.groups
    per_group_in, per_group_out = geometry.in_channels // groups, geometry.out_channels // groups
    count = patches(geometry, r)
    recipe = FilterRecipe.of(geometry, r, reference)
    kept_taps = prod(k if tap else 1 for k, tap in zip(geometry.kernel, recipe.taps, strict=True))
    gx = batch * count * geometry.in_channels * (2 * per_group_out * kept_taps - 1)  # (15)
    drawn = channels or geometry.in_channels
    gw = geometry.out_channels * per_group_in * drawn // geometry.in_channels * (2 * batch * count - 1)  # (5)
    means = batch * geometry.out_channels * (prod(geometry.out_size) - count)
    taps = groups * _group_pairs(geometry) * (prod(geometry.kernel) - kept_taps)
    rows, cols = (_covered(windows) for windows in recipe.in_grid)
    sums = batch * drawn * max(0, rows * cols - count)
    return Flops(
        forward=exact_flops(geometry).forward,
        input_gradient=gx if input_gradient else 0,
        weight_gradient=gw,
        forward_overhead=sums,
        backward_overhead=means + (taps if input_gradient else 0),
    )


def kept_bytes(geometry: ConvGeometry, r: int | None = None, channels: int | None = None) -> int:
    """Float32 bytes of the convolution's input that backward needs: x itself, or one number per patch and channel.

    Of drawn `channels` only, if there are any.
    """
    plane = prod(geometry.in_size) if r is None else patches(geometry, r)
    return geometry.batch * (channels or geometry.in_channels) * plane * FLOAT_BYTES


def conv_input_bytes(layers: Iterable[tuple[ConvGeometry, int | None, int | None]]) -> tuple[int, int]:
    """The memory column of the paper's Table 2: (exact, used) bytes over convolutions with their r and channels."""
    rows = list(layers)
    exact = sum(kept_bytes(geometry) for geometry, _, _ in rows)
    return exact, sum(kept_bytes(geometry, r, channels) for geometry, r, channels in rows)


def _group_pairs(geometry: ConvGeometry) -> int:
    return (geometry.in_channels // geometry.groups) * (geometry.out_channels // geometry.groups)


def _covered(windows: list[int]) -> int:
    """Input rows (or columns) inside any patch."""
    count, pitch, origin, lo, hi = windows
    return max(0, min(hi, count * pitch + origin) - max(lo, origin))
