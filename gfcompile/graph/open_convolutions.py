"""Convolutions that Winograd's filtering or their plain sum can compute: what a trial, or counting, decides."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass

from torch import fx

from gfcompile.geometry.winograd import KERNEL, Convolution
from gfcompile.graph.frozen import frozen_nodes
from gfcompile.graph.shapes import shape_of
from gfcompile.ops import gf
from gfcompile.step import Step

_CHANNELS = 8  # both counts must be multiples: the kernel has no other vectors


@dataclass(frozen=True)
class OpenConvolution:
    """A convolution that can be computed either way; how it is (None: by its plain sum); its node and its weights'."""

    node: fx.Node
    convolution: Convolution
    edge: int | None
    weights: fx.Node


def find_open(step: Step) -> Iterator[OpenConvolution]:
    """Whether the algorithm is chosen already or not."""
    if step.updated_buffers:
        return
    frozen = frozen_nodes(step)
    for node in step.body.graph.nodes:
        convolution = _read(node, frozen)
        if convolution is not None:
            edge = node.args[3] if node.target is gf.winograd_conv2d_nhwc.default else None
            yield OpenConvolution(node, convolution, edge, node.args[1])


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
