"""Clip the gradients that the optimizer will read: by their common norm, then by value.

    return loss, g1, g2
      ==>  c = gf.clip_coefficient([gf.square_sum(g1), gf.square_sum(g2)], limit) ; return loss, g1 * c, g2 * c
      ==>  return loss, clamp(g1, -limit, limit), clamp(g2, -limit, limit)

Exact: torch.nn.utils.clip_grad_norm_ over all trained parameters, and clip_grad_value_. A gradient that is one value
spread over a kernel's taps stays one value, and counts in the norm as often as it stands there; so do drawn channels.
Clipping by norm makes every update wait for the last gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import fx

from gfcompile.graph.nodes import emit
from gfcompile.graph.shapes import shape_of
from gfcompile.ops import gf
from gfcompile.passes.base import Found, Pass, Site
from gfcompile.step import Role, Step

aten = torch.ops.aten


@dataclass(frozen=True)
class Gradient(Site):
    """A gradient that is not clipped yet. The log names its parameter."""

    parameter: str

    @property
    def label(self) -> str:
        return self.parameter


@dataclass(frozen=True)
class ClipGradients(Pass[Gradient]):
    """Not site by site: the norm is one of all gradients. A limit of None clips nothing."""

    norm: float | None = None
    value: float | None = None
    name: ClassVar[str] = "clip_gradients"

    def find(self, step: Step) -> Found[Gradient]:
        if self.norm is None and self.value is None:
            return
        for value, node in zip(step.outputs, step.results(), strict=True):
            if value.role is Role.GRADIENT and not self._is_clipped(node):
                yield Gradient(node, value.name)

    def rewrite_all(self, step: Step, sites: list[Gradient]) -> None:
        graph = step.body.graph
        with graph.inserting_before(graph.output_node()):
            clipped = self._clip(graph, [site.node for site in sites])
        graph.output_node().args = (tuple(clipped.get(node, node) for node in step.results()),)

    def _clip(self, graph: fx.Graph, sites: list[fx.Node]) -> dict[fx.Node, fx.Node]:
        """Old gradient -> clipped one."""
        clipped: dict[fx.Node, fx.Node] = {}
        if self.norm is not None and sites:
            drawn = [drawn_value(node) for node in sites]
            sums = [emit(graph, gf.square_sum.default, spread_value(node), _copies(node)) for node in drawn]
            coefficient = emit(graph, gf.clip_coefficient.default, sums, self.norm)
            for node in dict.fromkeys(sites):
                clipped[node] = _on_value(graph, node, lambda g: emit(graph, aten.mul.Tensor, g, coefficient))
        if self.value is not None:
            low, high = -self.value, self.value
            for node in dict.fromkeys(sites):
                source = clipped.get(node, node)
                clipped[node] = _on_value(graph, source, lambda g: emit(graph, aten.clamp.default, g, low, high))
        return clipped

    def _is_clipped(self, gradient: fx.Node) -> bool:
        """By this pass, in an earlier run."""
        clipped = spread_value(drawn_value(gradient))
        if self.value is not None:
            return clipped.target is aten.clamp.default and clipped.args[1:] == (-self.value, self.value)
        factors = [arg.target for arg in clipped.args if isinstance(arg, fx.Node)]
        return clipped.target is aten.mul.Tensor and gf.clip_coefficient.default in factors


def drawn_value(gradient: fx.Node) -> fx.Node:
    """What a gradient holds of the drawn channels; itself where it is of all."""
    drawn: fx.Node = gradient.args[0] if gradient.target is gf.spread_weights.default else gradient
    return drawn


def spread_value(gradient: fx.Node) -> fx.Node:
    """What a gradient spreads over axes of one entry: itself, unless it is such a spread."""
    if gradient.target is not aten.expand.default:
        return gradient
    source: fx.Node = gradient.args[0]
    return source if len(shape_of(source)) == len(shape_of(gradient)) else gradient


def _copies(gradient: fx.Node) -> int:
    return math.prod(shape_of(gradient)) // math.prod(shape_of(spread_value(gradient)))


def _on_value(graph: fx.Graph, gradient: fx.Node, clip: Callable[[fx.Node], fx.Node]) -> fx.Node:
    """Clip the value and spread it again."""
    if gradient.target is gf.spread_weights.default:
        return emit(graph, gradient.target, _on_value(graph, gradient.args[0], clip), *gradient.args[1:])
    value = spread_value(gradient)
    if value is gradient:
        return clip(gradient)
    return emit(graph, aten.expand.default, clip(value), list(shape_of(gradient)))
