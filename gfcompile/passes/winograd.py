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

from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch import fx

from gfcompile.ops import gf
from gfcompile.passes.base import Found, Pass, emit, shape_of
from gfcompile.passes.fold_frozen import frozen_nodes
from gfcompile.step import Step
from gfcompile.winograd import KERNEL, Choose, Convolution, choose_edge

_CHANNELS = 8  # both counts must be multiples: the kernel has no other vectors


@dataclass(frozen=True)
class Winograd(Pass):
    """Sites are convolutions; one that is not worth it is no refusal, nobody asked."""

    choose: Choose = choose_edge
    name: ClassVar[str] = "winograd"

    def find(self, step: Step) -> Found:
        if step.updated_buffers:
            return
        frozen = frozen_nodes(step)
        for node in step.body.graph.nodes:
            convolution = _read(node, frozen)
            if node.target is gf.conv2d_nhwc.default and convolution and self.choose(convolution) is not None:
                yield node

    def rewrite(self, step: Step, site: fx.Node) -> None:
        x, w, shape, _stride, padding, _dilation, _groups = site.args
        convolution = _read(site, frozen_nodes(step))
        assert convolution is not None  # `find` looked
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


@dataclass(frozen=True)
class OpenSite:
    """A convolution that can be computed either way; how it is (None: by its plain sum); the node of its weights."""

    convolution: Convolution
    edge: int | None
    weights: fx.Node


def find_open(step: Step) -> Iterator[OpenSite]:
    """Before this pass or after it."""
    if step.updated_buffers:
        return
    frozen = frozen_nodes(step)
    for node in step.body.graph.nodes:
        convolution = _read(node, frozen)
        if convolution is not None:
            edge = node.args[3] if node.target is gf.winograd_conv2d_nhwc.default else None
            yield OpenSite(convolution, edge, node.args[1])


def _read(node: fx.Node, frozen: Container[fx.Node]) -> Convolution | None:
    """None where there is but one way."""
    if node.target is gf.winograd_conv2d_nhwc.default:
        padding = node.args[2]
    elif node.target is gf.conv2d_nhwc.default:
        _x, _w, shape, stride, padding, dilation, groups = node.args
        plain = (list(stride), list(dilation), groups) == ([1, 1], [1, 1], 1)
        if not plain or list(shape[2:]) != [KERNEL, KERNEL] or shape[0] % _CHANNELS or shape[1] % _CHANNELS:
            return None
    else:
        return None
    x, w, *_ = node.args
    n, high, wide, outputs = shape_of(node)
    return Convolution((n, high, wide), (shape_of(x)[3], outputs), (padding[0], padding[1]), w in frozen)
