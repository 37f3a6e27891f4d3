"""Pooling and its gradients."""

from __future__ import annotations

from torch import fx
from tvm import relax

from gfcompile.codegen import kernels
from gfcompile.codegen.converters.importer import Converter, Importer, emit, pair
from gfcompile.graph.shapes import shape_of


def _max_pool2d(node: fx.Node, to: Importer) -> relax.Var:
    x, kernel, stride, padding, dilation, _ = node.args
    size = pair(node.meta["val"][0].shape[1:3])
    geometry = (pair(kernel), pair(stride), pair(padding), pair(dilation))
    dtype = str(node.meta["val"][1].dtype).removeprefix("torch.")
    return emit(to, kernels.max_pool2d_with_indices, to.env[x], *geometry, size, dtype)


def _pool_positions(node: fx.Node, to: Importer) -> relax.Var:
    taps_of, width, *geometry = node.args
    return emit(to, kernels.pool_positions, to.env[taps_of], width, *(pair(values) for values in geometry))


def _max_pool2d_values(node: fx.Node, to: Importer) -> relax.Var:
    x, kernel, stride, padding, dilation, _ = node.args
    geometry = (pair(kernel), pair(stride), pair(padding), pair(dilation))
    return emit(to, kernels.max_pool2d, to.env[x], *geometry, pair(shape_of(node)[1:3]))


def _max_pool2d_backward(node: fx.Node, to: Importer) -> relax.Var:
    gy, taps, size, kernel, stride, padding, dilation = node.args
    geometry = (pair(size), pair(kernel), pair(stride), pair(padding), pair(dilation))
    return emit(to, kernels.max_pool2d_backward, to.env[gy], to.env[taps], *geometry)


def _avg_pool2d(node: fx.Node, to: Importer) -> relax.Var:
    x, kernel, stride, padding, _, count_pad, divisor = node.args
    size = pair(shape_of(node)[1:3])
    geometry = (pair(kernel), pair(stride), pair(padding), size)
    return emit(to, kernels.avg_pool2d, to.env[x], *geometry, count_pad, divisor or None)


def _avg_pool2d_backward(node: fx.Node, to: Importer) -> relax.Var:
    gy, size, kernel, stride, padding, _, count_pad, divisor = node.args
    geometry = (pair(size), pair(kernel), pair(stride), pair(padding))
    return emit(to, kernels.avg_pool2d_backward, to.env[gy], *geometry, count_pad, divisor or None)


def _adaptive_avg_pool2d(node: fx.Node, to: Importer) -> relax.Var:
    return emit(to, kernels.adaptive_avg_pool2d, to.env[node.args[0]], pair(node.args[1]))


def _adaptive_avg_pool2d_backward(node: fx.Node, to: Importer) -> relax.Var:
    return emit(to, kernels.adaptive_avg_pool2d_backward, to.env[node.args[0]], pair(node.args[1]))


CONVERTERS: dict[str, Converter] = {
    "max_pool2d_nhwc.default": _max_pool2d,
    "pool_positions_nhwc.default": _pool_positions,
    "max_pool2d_values_nhwc.default": _max_pool2d_values,
    "max_pool2d_backward_nhwc.default": _max_pool2d_backward,
    "avg_pool2d_nhwc.default": _avg_pool2d,
    "avg_pool2d_backward_nhwc.default": _avg_pool2d_backward,
    "adaptive_avg_pool2d_nhwc.default": _adaptive_avg_pool2d,
    "adaptive_avg_pool2d_backward_nhwc.default": _adaptive_avg_pool2d_backward,
}
