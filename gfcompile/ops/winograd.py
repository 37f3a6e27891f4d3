"""Convolutions by Winograd's minimal filtering: weights are transformed apart, frozen ones once and for all.

In eager mode the weights are turned back and the convolution is PyTorch's: the same function, other arithmetic.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.library import custom_op

from gfcompile.layouts import block_size
from gfcompile.ops.images import from_nchw, to_nchw, unpacked
from gfcompile.winograd import KERNEL, transforms


@custom_op("gf::winograd_weight", mutates_args=())
def winograd_weight(w: Tensor, shape: list[int], edge: int) -> Tensor:
    """Packed weights of logical `shape` [Co, Ci, 3, 3] -> G w Gt as [(edge + 2)^2, Co/kb, Ci, kb]."""
    matrix = torch.from_numpy(transforms(edge).weights).to(w.dtype)
    turned = torch.einsum("ai,ocij,bj->aboc", matrix, unpacked(w, shape, 1), matrix)
    block = block_size(shape[0])
    return turned.reshape(-1, shape[0] // block, block, shape[1]).transpose(2, 3).contiguous()


@winograd_weight.register_fake
def _(w: Tensor, shape: list[int], edge: int) -> Tensor:
    block = block_size(shape[0])
    return w.new_empty((transforms(edge).span ** 2, shape[0] // block, shape[1], block))


@custom_op("gf::winograd_conv2d_nhwc", mutates_args=())
def winograd_conv2d_nhwc(x: Tensor, u: Tensor, padding: list[int], edge: int) -> Tensor:
    """Convolution of [N, H, W, Ci] by transformed 3x3 weights, stride 1 -> [N, OH, OW, Co]."""
    back = torch.linalg.pinv(torch.from_numpy(transforms(edge).weights)).to(u.dtype)
    span, (_, blocks, inputs, block) = transforms(edge).span, u.shape
    square = u.transpose(2, 3).reshape(span, span, blocks * block, inputs)
    weight = torch.einsum("ia,aboc,jb->ocij", back, square, back)
    return from_nchw(torch.conv2d(to_nchw(x), weight, None, 1, padding))


@winograd_conv2d_nhwc.register_fake
def _(x: Tensor, u: Tensor, padding: list[int], edge: int) -> Tensor:
    size = [x.shape[1 + axis] + 2 * padding[axis] - KERNEL + 1 for axis in range(2)]
    return x.new_empty((x.shape[0], *size, u.shape[1] * u.shape[3]))
