"""The marked operator: gradient filtering of one convolution, whole."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.library import custom_op

from gfcompile.geometry.convolution import ConvGeometry
from gfcompile.geometry.filtering import FilterRecipe
from gfcompile.ops.mixing import mix, mix_weight
from gfcompile.ops.patches import patch_broadcast, patch_mean, patch_sum


@custom_op("gf::filtered_convolution_backward", mutates_args=())
def filtered_convolution_backward(
    gy: Tensor,
    x: Tensor,
    w: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    r: int,
    reference: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradient filtering of one convolution as a single operator: what `select` writes and `filter` expands."""
    recipe = FilterRecipe.of(ConvGeometry.of(x, w, gy, stride, padding, dilation, groups), r, reference)
    g = patch_mean(gy, *recipe.out_grid)
    x_tilde = patch_sum(x, *recipe.in_grid)
    q = mix(g, w, groups, recipe.taps) * recipe.scale
    gx = patch_broadcast(q, *recipe.in_grid, list(x.shape[2:]))
    gw = mix_weight(g, x_tilde, groups, list(w.shape[2:])) * recipe.scale
    return gx, gw, gy.sum((0, 2, 3))


@filtered_convolution_backward.register_fake
def _(
    gy: Tensor,
    x: Tensor,
    w: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    r: int,
    reference: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(w), gy.new_empty((gy.shape[1],))
