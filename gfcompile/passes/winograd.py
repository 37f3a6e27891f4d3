"""Convolve 3x3 kernels of stride 1 with fewer multiplications.

    conv2d_nhwc(x, w)   ==>   winograd_conv2d_nhwc(x, w)                     where counting, or a trial, finds it faster
                        ==>   winograd_conv2d_nhwc(x, winograd_weight(w))    and w is frozen and small

The same function in exact arithmetic; in float32 it rounds more than the plain sum, by a factor of two or three.
Frozen weights are transformed at compile time by the folding that follows. That makes four of one, so large ones, and
those that training changes, are transformed by the kernel itself, a few channels at a time.

A step that updates statistics, as batch norms in training mode do, is left alone: there the rounding of one step comes
back in the next, and 20 steps of ResNet-18 left PyTorch's losses by 1.5e-3 instead of less than 1e-3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gfcompile.geometry.winograd import Choose, Convolution, choose_edge
from gfcompile.graph.nodes import emit
from gfcompile.graph.open_convolutions import find_open
from gfcompile.ops import gf
from gfcompile.passes.base import Found, Pass, Site
from gfcompile.step import Step


@dataclass(frozen=True)
class Chosen(Site):
    """A convolution that is faster in tiles of this edge."""

    convolution: Convolution
    edge: int


@dataclass(frozen=True)
class Winograd(Pass[Chosen]):
    """Sites are convolutions; one that is not worth it is no refusal, nobody asked."""

    choose: Choose = choose_edge
    name: ClassVar[str] = "winograd"

    def find(self, step: Step) -> Found[Chosen]:
        for each in find_open(step):
            edge = self.choose(each.convolution) if each.edge is None else None
            if edge is not None:
                yield Chosen(each.node, each.convolution, edge)

    def rewrite(self, step: Step, site: Chosen) -> None:
        node, graph = site.node, step.body.graph
        x, w, shape, _stride, padding, _dilation, _groups = node.args
        with graph.inserting_before(node):
            if site.convolution.is_prepared(site.edge):
                w = emit(graph, gf.winograd_weight.default, w, shape, site.edge)
            result = emit(graph, gf.winograd_conv2d_nhwc.default, x, w, padding, site.edge)
        result.meta["stack_trace"] = node.meta.get("stack_trace")
        node.replace_all_uses_with(result)
        graph.erase_node(node)
