"""Exact convolutions on [N, H, W, C] images with packed weights."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.library import custom_op

from gfcompile.geometry.layouts import WeightLayout
from gfcompile.ops.images import from_nchw, packed, to_nchw, unpacked

aten = torch.ops.aten


@custom_op("gf::conv2d_nhwc", mutates_args=())
def conv2d_nhwc(
    x: Tensor, w: Tensor, shape: list[int], stride: list[int], padding: list[int], dilation: list[int], groups: int
) -> Tensor:
    """Convolution of [N, H, W, Ci] by packed weights (`shape` is their logical shape) -> [N, OH, OW, Co]."""
    y = torch.conv2d(to_nchw(x, True), unpacked(w, shape, groups), None, stride, padding, dilation, groups)
    return from_nchw(y, True)


@conv2d_nhwc.register_fake
def _(
    x: Tensor, w: Tensor, shape: list[int], stride: list[int], padding: list[int], dilation: list[int], groups: int
) -> Tensor:
    size = [(x.shape[1 + i] + 2 * padding[i] - dilation[i] * (shape[2 + i] - 1) - 1) // stride[i] + 1 for i in range(2)]
    return x.new_empty((x.shape[0], *size, shape[0]))


@custom_op("gf::conv2d_input_grad_nhwc", mutates_args=())
def conv2d_input_grad_nhwc(
    gy: Tensor,
    w: Tensor,
    shape: list[int],
    size: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    """Exact gradient of the convolution's input, [N, H, W, Ci]."""
    weight, gradient = unpacked(w, shape, groups), to_nchw(gy, True)
    x = gy.new_empty((gy.shape[0], shape[1] * groups, *size))
    grads = aten.convolution_backward(
        gradient, x, weight, None, stride, padding, dilation, False, [0, 0], groups, [True, False, False]
    )
    return from_nchw(grads[0], True)


@conv2d_input_grad_nhwc.register_fake
def _(
    gy: Tensor,
    w: Tensor,
    shape: list[int],
    size: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    return gy.new_empty((gy.shape[0], *size, shape[1] * groups))


@custom_op("gf::conv2d_weight_grad_nhwc", mutates_args=())
def conv2d_weight_grad_nhwc(
    gy: Tensor, x: Tensor, shape: list[int], stride: list[int], padding: list[int], dilation: list[int], groups: int
) -> Tensor:
    """Exact gradient of the convolution's weights, packed."""
    grads = aten.convolution_backward(
        to_nchw(gy, True),
        to_nchw(x, True),
        x.new_empty(shape),
        None,
        stride,
        padding,
        dilation,
        False,
        [0, 0],
        groups,
        [False, True, False],
    )
    return packed(grads[1], groups)


@conv2d_weight_grad_nhwc.register_fake
def _(
    gy: Tensor, x: Tensor, shape: list[int], stride: list[int], padding: list[int], dilation: list[int], groups: int
) -> Tensor:
    return gy.new_empty(WeightLayout.for_conv(shape, groups).physical_shape)
