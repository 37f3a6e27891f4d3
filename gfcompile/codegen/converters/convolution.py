"""Exact convolutions and their gradients, plain or by Winograd's transform, and channel mixing on the patch grid."""

from __future__ import annotations

from torch import fx
from tvm import relax

from gfcompile.codegen import kernels
from gfcompile.codegen.converters.importer import Converter, Importer, emit, is_depthwise, pair
from gfcompile.geometry.layouts import block_size


def _conv2d(node: fx.Node, to: Importer) -> relax.Var:
    x, w, shape, stride, padding, dilation, groups = node.args
    geometry = (pair(stride), pair(padding), pair(dilation))
    if is_depthwise(shape, groups):
        return emit(to, kernels.depthwise_conv2d, to.env[x], to.env[w], *geometry)
    return emit(to, kernels.conv2d, to.env[x], to.env[w], *geometry, groups)


def _winograd_conv2d(node: fx.Node, to: Importer) -> relax.Var:
    x, u, padding, edge = node.args
    return emit(to, kernels.winograd_conv2d, to.env[x], to.env[u], pair(padding), edge)


def _conv2d_input_grad(node: fx.Node, to: Importer) -> relax.Var:
    gy, w, shape, size, stride, padding, dilation, groups = node.args
    geometry = (pair(size), pair(stride), pair(padding), pair(dilation))
    if is_depthwise(shape, groups):
        return emit(to, kernels.depthwise_conv2d_input_grad, to.env[gy], to.env[w], *geometry)
    return emit(to, kernels.conv2d_input_grad, to.env[gy], to.env[w], *geometry, groups)


def _conv2d_weight_grad(node: fx.Node, to: Importer) -> relax.Var:
    gy, x, shape, stride, padding, dilation, groups = node.args
    geometry = (pair(shape[2:]), pair(stride), pair(padding), pair(dilation))
    if is_depthwise(shape, groups):
        return emit(to, kernels.depthwise_conv2d_weight_grad, to.env[gy], to.env[x], *geometry)
    block = block_size(shape[0], groups)
    return emit(to, kernels.conv2d_weight_grad, to.env[gy], to.env[x], *geometry, groups, block)


def _channel_mix(node: fx.Node, to: Importer) -> relax.Var:
    g, w, shape, groups, taps = node.args
    return emit(to, kernels.channel_mix, to.env[g], to.env[w], groups, pair(taps), is_depthwise(shape, groups))


def _channel_mix_weight(node: fx.Node, to: Importer) -> relax.Var:
    g, x_tilde, shape, groups = node.args
    block = block_size(shape[0], groups)
    geometry = (groups, pair(shape[2:]), block, is_depthwise(shape, groups))
    return emit(to, kernels.channel_mix_weight, to.env[g], to.env[x_tilde], *geometry)


CONVERTERS: dict[str, Converter] = {
    "winograd_conv2d_nhwc.default": _winograd_conv2d,
    "conv2d_nhwc.default": _conv2d,
    "conv2d_input_grad_nhwc.default": _conv2d_input_grad,
    "conv2d_weight_grad_nhwc.default": _conv2d_weight_grad,
    "channel_mix_nhwc.default": _channel_mix,
    "channel_mix_weight_nhwc.default": _channel_mix_weight,
}
