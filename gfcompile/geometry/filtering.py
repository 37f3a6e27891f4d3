"""The numbers that gradient filtering of one convolution needs, for either mode (docs/method.md, section 1)."""

from __future__ import annotations

from dataclasses import dataclass

from gfcompile.geometry.convolution import (
    ConvGeometry,
    input_windows,
    mix_dilation,
    output_windows,
    reference_input_windows,
    reference_mix_dilation,
)

Grid = tuple[list[int], list[int]]


@dataclass(frozen=True)
class FilterRecipe:
    """Grids of output and input (rows, cols), the kernel's dilations on the patch grid, the factor on gx and gw."""

    out_grid: Grid
    in_grid: Grid
    taps: list[int]
    scale: float

    @classmethod
    def of(cls, geometry: ConvGeometry, r: int, reference: bool) -> FilterRecipe:
        """`reference` follows the published formulas; otherwise the unbiased ones with their 1/(s_h*s_w)."""
        out_grid = (
            output_windows(geometry.out_size[0], r).as_list(),
            output_windows(geometry.out_size[1], r).as_list(),
        )
        if reference:
            tap = reference_mix_dilation(geometry, r)
            in_grid = tuple(reference_input_windows(geometry, axis, r).as_list() for axis in (0, 1))
            return cls(out_grid, (in_grid[0], in_grid[1]), [tap, tap], 1.0)
        in_grid = tuple(input_windows(geometry, axis, r).as_list() for axis in (0, 1))
        taps = [mix_dilation(geometry, axis, r) for axis in (0, 1)]
        return cls(out_grid, (in_grid[0], in_grid[1]), taps, 1.0 / (geometry.stride[0] * geometry.stride[1]))
