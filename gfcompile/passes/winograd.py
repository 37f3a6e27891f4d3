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

from torch import fx

from gfcompile.geometry.winograd import Choose, choose_edge
from gfcompile.graph.nodes import emit
from gfcompile.graph.open_convolutions import find_open
from gfcompile.ops import gf
from gfcompile.passes.base import Found, Pass
from gfcompile.step import Step

_CHANNELS = 8  # both counts must be multiples: the kernel has no other vectors


@dataclass(frozen=True)
class Winograd(Pass):
    """Sites are convolutions; one that is not worth it is no refusal, nobody asked."""

    choose: Choose = choose_edge
    name: ClassVar[str] = "winograd"

    def find(self, step: Step) -> Found:
        for each in find_open(step):
            if each.edge is None and self.choose(each.convolution) is not None:
                yield each.node

    def rewrite(self, step: Step, site: fx.Node) -> None:
        x, w, shape, _stride, padding, _dilation, _groups = site.args
        convolution = next(each.convolution for each in find_open(step) if each.node is site)
        edge = self.choose(convolution)
        assert edge is not None
        graph = step.body.graph
        with graph.inserting_before(site):
            if convolution.is_prepared(edge):
                w = emit(graph, gf.winograd_weight.default, w, shape, edge)
            result = emit(graph, gf.winograd_conv2d_nhwc.default, x, w, padding, edge)
        result.meta["stack_trace"] = site.meta.get("stack_trace")
        site.replace_all_uses_with(result)
        graph.erase_node(site)
