"""Convolutions by Winograd's minimal filtering, of weights as they are or transformed beforehand.

In eager mode transformed weights are turned back and the convolution is PyTorch's: the same function, other arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.library import custom_op

from gfcompile.geometry.layouts import block_size
from gfcompile.geometry.winograd import KERNEL, transforms
from gfcompile.ops.images import from_nchw, to_nchw, unpacked

PACKED = 5  # axes of packed weights; transformed ones have four


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
def winograd_conv2d_nhwc(x: Tensor, w: Tensor, padding: list[int], edge: int) -> Tensor:
    """Convolution of [N, H, W, Ci] by 3x3 weights, packed or from `winograd_weight`, stride 1 -> [N, OH, OW, Co]."""
    weight = unpacked(w, packed_shape(w.shape), 1) if w.dim() == PACKED else _turned_back(w, edge)
    return from_nchw(torch.conv2d(to_nchw(x), weight, None, 1, padding))


def _turned_back(u: Tensor, edge: int) -> Tensor:
    back = torch.linalg.pinv(torch.from_numpy(transforms(edge).weights)).to(u.dtype)
    span, (_, blocks, inputs, block) = transforms(edge).span, u.shape
    square = u.transpose(2, 3).reshape(span, span, blocks * block, inputs)
    return torch.einsum("ia,aboc,jb->ocij", back, square, back)


def packed_shape(physical: Sequence[int]) -> list[int]:
    """The logical shape of packed weights."""
    blocks, high, wide, inputs, block = physical
    return [blocks * block, inputs, high, wide]


@winograd_conv2d_nhwc.register_fake
def _(x: Tensor, w: Tensor, padding: list[int], edge: int) -> Tensor:
    size = [x.shape[1 + axis] + 2 * padding[axis] - KERNEL + 1 for axis in range(2)]
    outputs = w.shape[-1] * w.shape[0 if w.dim() == PACKED else 1]
    return x.new_empty((x.shape[0], *size, outputs))
