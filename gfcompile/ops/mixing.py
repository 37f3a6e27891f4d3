"""Channel mixing: a convolution's backward on the patch grid."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.library import custom_op

from gfcompile.geometry.layouts import WeightLayout
from gfcompile.ops.images import from_nchw, packed, to_nchw, unpacked


def mix(g: Tensor, w: Tensor, groups: int, taps: list[int]) -> Tensor:
    """q[P] = sum over co and taps of w[co, ci, u] * g[P + middle - u*tap]; an axis with tap 0 has its taps summed."""
    for axis, tap in ((2, taps[0]), (3, taps[1])):
        if tap == 0:
            w = w.sum(axis, keepdim=True)
    kernel = (w.shape[2], w.shape[3])
    step = [max(tap, 1) for tap in taps]
    before = [s * (k - 1) - s * (k - 1) // 2 for s, k in zip(step, kernel, strict=True)]
    after = [s * (k - 1) // 2 for s, k in zip(step, kernel, strict=True)]
    padded = torch.nn.functional.pad(g, (before[1], after[1], before[0], after[0]))
    per_group = w.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1).flip((2, 3))  # [Ci, Co/groups, k, k]
    return torch.conv2d(padded, per_group, dilation=step, groups=groups)


@custom_op("gf::channel_mix", mutates_args=())
def channel_mix(g: Tensor, w: Tensor, groups: int, taps: list[int]) -> Tensor:
    """Patch gradients of the output [N, Co, P, Q] through the kernel to those of the input [N, Ci, P, Q]."""
    return mix(g, w, groups, taps)


@channel_mix.register_fake
def _(g: Tensor, w: Tensor, groups: int, taps: list[int]) -> Tensor:
    return g.new_empty((g.shape[0], w.shape[1] * groups, g.shape[2], g.shape[3]))


def mix_weight(g: Tensor, x_tilde: Tensor, groups: int, kernel: list[int]) -> Tensor:
    """gw[co, ci, u] = sum over samples and patches of g[co] * x_tilde[ci], for every tap u alike."""
    left, right = g.unflatten(1, (groups, -1)), x_tilde.unflatten(1, (groups, -1))
    mixed = torch.einsum("ngopq,ngipq->goi", left, right).flatten(0, 1)
    return mixed[:, :, None, None].expand(*mixed.shape, *kernel).contiguous()


@custom_op("gf::channel_mix_weight", mutates_args=())
def channel_mix_weight(g: Tensor, x_tilde: Tensor, groups: int, kernel: list[int]) -> Tensor:
    """Weight gradient [Co, Ci/groups, kh, kw] from patch gradients and patch sums: the same value for every tap."""
    return mix_weight(g, x_tilde, groups, kernel)


@channel_mix_weight.register_fake
def _(g: Tensor, x_tilde: Tensor, groups: int, kernel: list[int]) -> Tensor:
    return g.new_empty((g.shape[1], x_tilde.shape[1] // groups, *kernel))


@custom_op("gf::channel_mix_nhwc", mutates_args=())
def channel_mix_nhwc(g: Tensor, w: Tensor, shape: list[int], groups: int, taps: list[int]) -> Tensor:
    """`channel_mix` on [N, P, Q, Co] with packed weights."""
    return from_nchw(mix(to_nchw(g, True), unpacked(w, shape, groups), groups, taps), True)


@channel_mix_nhwc.register_fake
def _(g: Tensor, w: Tensor, shape: list[int], groups: int, taps: list[int]) -> Tensor:
    return g.new_empty((*g.shape[:3], shape[1] * groups))


@custom_op("gf::channel_mix_weight_nhwc", mutates_args=())
def channel_mix_weight_nhwc(g: Tensor, x_tilde: Tensor, shape: list[int], groups: int) -> Tensor:
    """`channel_mix_weight` from [N, P, Q, C] values into packed weights."""
    return packed(mix_weight(to_nchw(g, True), to_nchw(x_tilde, True), groups, shape[2:]), groups)


@channel_mix_weight_nhwc.register_fake
def _(g: Tensor, x_tilde: Tensor, shape: list[int], groups: int) -> Tensor:
    return g.new_empty(WeightLayout.for_conv(shape, groups).physical_shape)
