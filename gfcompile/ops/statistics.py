"""What the patch calculus (docs/method.md, section 3) keeps of forward values, and how the patch grid reads it back."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.library import custom_op

from gfcompile.geometry.convolution import Windows
from gfcompile.geometry.grids import NOWHERE, parents
from gfcompile.ops.images import from_nchw, to_nchw
from gfcompile.ops.patches import patch_area, patch_shape, patch_sum

LARGEST_BYTE = 255


def count_type(rows: list[int], cols: list[int]) -> torch.dtype:
    """One byte per patch unless a patch has more pixels than a byte counts."""
    return torch.uint8 if rows[1] * cols[1] <= LARGEST_BYTE else torch.int32


def _conjunction(masks: list[Tensor], wanted: list[bool]) -> Tensor:
    agree = torch.ones((), dtype=torch.bool)
    for mask, value in zip(masks, wanted, strict=True):
        agree = agree & (mask if value else ~mask)
    return agree


@custom_op("gf::mask_count", mutates_args=())
def mask_count(
    masks: list[Tensor], wanted: list[bool], rows: list[int], cols: list[int], channels_last: bool = False
) -> Tensor:
    """Pixels of each patch where every mask has its wanted value: S(m1*...*mk) as an integer."""
    agree = _conjunction(masks, wanted).to(torch.float64)
    return patch_sum(agree, rows, cols, channels_last).to(count_type(rows, cols))


@mask_count.register_fake
def _(masks: list[Tensor], wanted: list[bool], rows: list[int], cols: list[int], channels_last: bool = False) -> Tensor:
    whole = masks[0].new_empty(torch.broadcast_shapes(*(mask.shape for mask in masks)))
    return whole.new_empty(patch_shape(whole, rows, cols, channels_last), dtype=count_type(rows, cols))


@custom_op("gf::scale_by_area", mutates_args=())
def scale_by_area(q: Tensor, rows: list[int], cols: list[int], inverse: bool, channels_last: bool = False) -> Tensor:
    """Patch values times the real pixels of their patch, or divided by them (zero for a patch without any)."""
    area = patch_area(rows, cols, q)
    factor = torch.where(area > 0, 1 / area.clamp(min=1), 0) if inverse else area
    return from_nchw(to_nchw(q, channels_last) * factor, channels_last)


@scale_by_area.register_fake
def _(q: Tensor, rows: list[int], cols: list[int], inverse: bool, channels_last: bool = False) -> Tensor:
    return torch.empty_like(q)


@custom_op("gf::regrid", mutates_args=())
def regrid(
    q: Tensor, rows: list[int], cols: list[int], to_rows: list[int], to_cols: list[int], channels_last: bool = False
) -> Tensor:
    """Values of a coarse grid on a finer one: q[parent], zero where a fine patch lies in no coarse one."""
    image = to_nchw(q, channels_last)
    for axis, coarse, fine in ((2, rows, to_rows), (3, cols, to_cols)):
        index = torch.tensor(parents(Windows(*fine), Windows(*coarse)))
        shape = [1, 1, 1, 1]
        shape[axis] = -1
        taken = image.index_select(axis, index.clamp(min=0))
        image = torch.where((index != NOWHERE).view(shape), taken, 0)
    return from_nchw(image, channels_last)


@regrid.register_fake
def _(
    q: Tensor, rows: list[int], cols: list[int], to_rows: list[int], to_cols: list[int], channels_last: bool = False
) -> Tensor:
    return q.new_empty(patch_shape(q, to_rows, to_cols, channels_last))


@custom_op("gf::pack_mask", mutates_args=())
def pack_mask(mask: Tensor) -> Tensor:
    """Eight elements per byte, in the order of memory; the last byte is filled up with zeros."""
    flat = mask.contiguous().flatten().to(torch.uint8)
    octets = torch.nn.functional.pad(flat, (0, -flat.numel() % 8)).view(-1, 8)
    return (octets << torch.arange(8, dtype=torch.uint8)).sum(1).to(torch.uint8)


@pack_mask.register_fake
def _(mask: Tensor) -> Tensor:
    return mask.new_empty(((mask.numel() + 7) // 8,), dtype=torch.uint8)


def _unpacked(bits: Tensor, shape: list[int]) -> Tensor:
    octets = (bits[:, None] >> torch.arange(8, dtype=torch.uint8)) & 1
    return octets.flatten()[: torch.Size(shape).numel()].view(shape).to(torch.bool)


@custom_op("gf::unpack_mask", mutates_args=())
def unpack_mask(bits: Tensor, shape: list[int]) -> Tensor:
    """The mask that `pack_mask` packed."""
    return _unpacked(bits, shape)


@unpack_mask.register_fake
def _(bits: Tensor, shape: list[int]) -> Tensor:
    return bits.new_empty(shape, dtype=torch.bool)


@custom_op("gf::packed_mask_count", mutates_args=())
def packed_mask_count(
    bits: list[Tensor],
    wanted: list[bool],
    shape: list[int],
    rows: list[int],
    cols: list[int],
    channels_last: bool = False,
) -> Tensor:
    """`mask_count` of packed masks of one shape."""
    masks = [_unpacked(packed, shape) for packed in bits]
    return mask_count(masks, wanted, rows, cols, channels_last)


@packed_mask_count.register_fake
def _(
    bits: list[Tensor],
    wanted: list[bool],
    shape: list[int],
    rows: list[int],
    cols: list[int],
    channels_last: bool = False,
) -> Tensor:
    like = bits[0].new_empty(shape)
    return bits[0].new_empty(patch_shape(like, rows, cols, channels_last), dtype=count_type(rows, cols))
