"""Multiply-adds of one node of a graph, counted from shapes: convolutions and matrix products, and their gradients.

A convolution counts as its plain sum, whether Winograd's transform computes it or not. What is no sum of products
counts nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import fx

from gfcompile.geometry.winograd import KERNEL
from gfcompile.graph.shapes import shape_of
from gfcompile.ops import gf

aten = torch.ops.aten


def multiply_adds(node: fx.Node) -> int:
    """For the whole batch; 0 for what multiplies no matrices."""
    count = COUNTS.get(node.target)
    return count(node) if count is not None and node.op == "call_function" else 0


def _convolution(node: fx.Node) -> int:
    x, w, *_, transposed, _, _ = node.args
    return _size(x if transposed else node) * prod(shape_of(w)[1:])


def _convolution_backward(node: fx.Node) -> int:
    gy, x, w, _, _, _, _, transposed, _, _, wanted = node.args
    return (bool(wanted[0]) + bool(wanted[1])) * _size(x if transposed else gy) * prod(shape_of(w)[1:])


def _of_result(node: fx.Node) -> int:
    """One product for every element of the result and every entry of its kernel, whose logical shape is argument 2."""
    shape: Any = node.args[2]
    return _size(node) * prod(shape[1:])


def _of_gradient(node: fx.Node) -> int:
    shape: Any = node.args[2]
    return _size(node.args[0]) * prod(shape[1:])


def _winograd(node: fx.Node) -> int:
    return _size(node) * shape_of(node.args[0])[-1] * KERNEL**2


def _channel_mix(node: fx.Node) -> int:
    g, _, shape, _, taps = node.args
    kept = prod(size for size, tap in zip(shape[2:], taps, strict=True) if tap)
    return _size(g) * shape[1] * kept


def _product(node: fx.Node) -> int:
    """[..., M, K] times [..., K, N]; the last two tensors are its factors."""
    left = [arg for arg in node.args if isinstance(arg, fx.Node)][-2]
    return _size(node) * shape_of(left)[-1]


def _size(node: Any) -> int:
    return prod(shape_of(node))


COUNTS: dict[Any, Callable[[fx.Node], int]] = {
    gf.conv2d_nhwc.default: _of_result,
    gf.winograd_conv2d_nhwc.default: _winograd,
    gf.conv2d_input_grad_nhwc.default: _of_gradient,
    gf.conv2d_weight_grad_nhwc.default: _of_gradient,
    gf.channel_mix_nhwc.default: _channel_mix,
    gf.channel_mix_weight_nhwc.default: _of_gradient,
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    aten.mm.default: _product,
    aten.addmm.default: _product,
    aten.bmm.default: _product,
    aten.baddbmm.default: _product,
}
