"""Convolve 3x3 kernels of stride 1 with fewer multiplications.

    conv2d_nhwc(x, w)   ==>   winograd_conv2d_nhwc(x, w)                     where the cost model finds it faster
                        ==>   winograd_conv2d_nhwc(x, winograd_weight(w))    and w is frozen and small

The same function in exact arithmetic; in float32 it rounds more than the plain sum, by a factor of two or three.
Frozen weights are transformed at compile time by the folding that follows. That makes four of one, so large ones, and
those that training changes, are transformed by the kernel itself, a few channels at a time.

A step that updates statistics, as batch norms in training mode do, is left alone: there the rounding of one step comes
back in the next, and 20 steps of ResNet-18 left PyTorch's losses by 1.5e-3 instead of less than 1e-3.
"""

from __future__ import annotations

from typing import ClassVar

from torch import fx

from gfcompile.ops import gf
from gfcompile.passes.base import Found, Pass, emit, shape_of
from gfcompile.passes.fold_frozen import frozen_nodes
from gfcompile.step import Step
from gfcompile.winograd import KERNEL, choose_edge, is_prepared

_CHANNELS = 8  # both counts must be multiples: the kernel has no other vectors


class Winograd(Pass):
    """Sites are convolutions; one that is not worth it is no refusal, nobody asked."""

    name: ClassVar[str] = "winograd"

    def find(self, step: Step) -> Found:
        if step.updated_buffers:
            return
        for node in step.body.graph.nodes:
            if node.target is gf.conv2d_nhwc.default and _edge(node) is not None:
                yield node

    def rewrite(self, step: Step, site: fx.Node) -> None:
        x, w, shape, _stride, padding, _dilation, _groups = site.args
        edge = _edge(site)
        assert edge is not None  # `find` looked
        graph = step.body.graph
        with graph.inserting_before(site):
            if w in frozen_nodes(step) and is_prepared(edge, (shape[1], shape[0])):
                w = emit(graph, gf.winograd_weight.default, w, shape, edge)
            result = emit(graph, gf.winograd_conv2d_nhwc.default, x, w, padding, edge)
        result.meta["stack_trace"] = site.meta.get("stack_trace")
        site.replace_all_uses_with(result)
        graph.erase_node(site)


def _edge(node: fx.Node) -> int | None:
    _x, _w, shape, stride, _padding, dilation, groups = node.args
    plain = (list(stride), list(dilation), groups) == ([1, 1], [1, 1], 1)
    if not plain or list(shape[2:]) != [KERNEL, KERNEL] or shape[0] % _CHANNELS or shape[1] % _CHANNELS:
        return None
    n, high, wide, _ = shape_of(node)
    return choose_edge((n, high, wide), (shape[1], shape[0]))
