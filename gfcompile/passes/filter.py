"""Expand a filtered backward into patch-sum, channel-mix, broadcast (docs/method.md, section 1).

    gx, gw, gb = gf.filtered_convolution_backward(gy, x, w, ...)
      ==>  g  = gf.patch_mean(gy)                   gw = expand(gf.channel_mix_weight(g, gf.patch_sum(x) / (s_h*s_w)))
           gb = sum(gy)                             gx = gf.patch_broadcast(gf.channel_mix(g, w) / (s_h*s_w))

Exact with respect to the marked operator. Only the results that somebody uses are computed; where every patch is one
pixel (r=1, a 1x1 map) the patch operators would do nothing and are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import fx

from gfcompile.geometry.convolution import ConvGeometry
from gfcompile.geometry.filtering import FilterRecipe
from gfcompile.geometry.filtering import Grid as PatchGrid
from gfcompile.geometry.grids import Grid
from gfcompile.graph.nodes import emit, results_of
from gfcompile.graph.shapes import shape_of
from gfcompile.ops import gf
from gfcompile.passes.base import Found, Pass, Site
from gfcompile.step import Step

aten = torch.ops.aten


@dataclass(frozen=True)
class Marked(Site):
    """A marked backward and how it is filtered. The log names its weight."""

    recipe: FilterRecipe

    @property
    def label(self) -> str:
        return str(self.node.args[2])


@dataclass(frozen=True)
class Filter(Pass[Marked]):
    """Every marked backward becomes patch operators."""

    name: ClassVar[str] = "filter"

    def find(self, step: Step) -> Found[Marked]:
        for node in step.body.graph.nodes:
            if node.target is gf.filtered_convolution_backward.default:
                yield Marked(node, _recipe(node))

    def rewrite(self, step: Step, site: Marked) -> None:
        gy, x, w, _, _, _, groups, _, _ = site.node.args
        recipe, graph, results = site.recipe, step.body.graph, results_of(site.node)
        new: dict[int, fx.Node] = {}
        with graph.inserting_before(site.node):
            g = _over_patches(graph, gf.patch_mean.default, gy, recipe.out_grid)
            if 0 in results:
                q = _scaled(graph, emit(graph, gf.channel_mix.default, g, w, groups, recipe.taps), recipe.scale)
                new[0] = _over_patches(graph, gf.patch_broadcast.default, q, recipe.in_grid, shape_of(x)[2:])
            if 1 in results:
                x_tilde = _scaled(graph, _over_patches(graph, gf.patch_sum.default, x, recipe.in_grid), recipe.scale)
                new[1] = _every_tap(graph, emit(graph, gf.channel_mix_weight.default, g, x_tilde, groups, [1, 1]), w)
            if 2 in results:
                new[2] = emit(graph, aten.sum.dim_IntList, gy, [0, 2, 3])
        for index, user in results.items():
            user.replace_all_uses_with(new[index])
            graph.erase_node(user)
        graph.erase_node(site.node)


def _recipe(node: fx.Node) -> FilterRecipe:
    gy, x, w, stride, padding, dilation, groups, r, reference = node.args
    tensors = (x.meta["val"], w.meta["val"], gy.meta["val"])
    return FilterRecipe.of(ConvGeometry.of(*tensors, stride, padding, dilation, groups), r, reference)


def _over_patches(
    graph: fx.Graph, target: Any, value: fx.Node, grid: PatchGrid, size: tuple[int, ...] | None = None
) -> fx.Node:
    """A patch operator, or nothing where every patch is one pixel. `size` is that of a broadcast's result."""
    full = shape_of(value)[2:] if size is None else size
    if Grid.of(*grid, (full[0], full[1])).is_pixels:
        return value
    return emit(graph, target, value, *grid, *([list(full)] if size is not None else []))


def _every_tap(graph: fx.Graph, gw: fx.Node, w: fx.Node) -> fx.Node:
    """The same gradient for every tap: an update reads the one value, and only a returned gradient is copied out."""
    return gw if shape_of(gw) == shape_of(w) else emit(graph, aten.expand.default, gw, list(shape_of(w)))


def _scaled(graph: fx.Graph, value: fx.Node, scale: float) -> fx.Node:
    return value if scale == 1.0 else emit(graph, aten.mul.Scalar, value, scale)
