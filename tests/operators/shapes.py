"""Values moved and none changed: views, slices, joins, repeats, and in-place assignment."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.operators.harness import case, image

S = (3, 5, 4)
IMAGE = (2, 6, 7, 9)

VIEWS = [
    case("view", lambda x: x.view(5, 12), S),
    case("reshape_of_permuted", lambda x: x.permute(2, 0, 1).reshape(6, 10), S),
    case("flatten", lambda x: x.flatten(1), S),
    case("unflatten", lambda x: x.unflatten(1, (5, 1)), S),
    case("permute", lambda x: x.permute(2, 0, 1), S),
    case("transpose", lambda x: x.transpose(0, -1), S),
    case("t", lambda x: x.t(), (3, 4)),
    case("movedim", lambda x: x.movedim(0, 2), S),
    case("swapaxes", lambda x: x.swapaxes(0, 1), S),
    case("mT", lambda x: x.mT, S),
    case("squeeze", lambda x: x.squeeze(), (3, 1, 4, 1)),
    case("squeeze_axis", lambda x: x.squeeze(1), (3, 1, 4, 1)),
    case("unsqueeze", lambda x: x.unsqueeze(-1), S),
    case("expand", lambda x: x.expand(2, 3, 5, 4), (3, 1, 4)),
    case("expand_as", lambda x, y: x.expand_as(y) * y, (1, 4), S),
    case("broadcast_to", lambda x: x.broadcast_to(3, 5, 4), (5, 1)),
    case("contiguous", lambda x: x.transpose(0, 1).contiguous().view(15, 4), S),
    case("as_strided", lambda x: x.as_strided((3, 4), (7, 2), 3), S),
    case("ravel", torch.ravel, S),
    case("view_as", lambda x, y: x.view_as(y) * y, (3, 20), S),
    case("channel_shuffle_by_hand", lambda x: x.view(2, 2, 3, 5).transpose(1, 2).reshape(2, 6, 5), (2, 6, 5)),
    case("patches_by_views", lambda x: x.view(2, 3, 2, 4, 3, 2).permute(0, 2, 4, 3, 5, 1).flatten(1, 2), (2, 3, 8, 6)),
    case("diagonal", torch.diagonal, (5, 4)),
    case("diagonal_offset", lambda x: x.diagonal(-1, 1, 2), S),
    case("diag_embed", torch.diag_embed, (3, 4)),
    case("diag", torch.diag, (4,)),
    case("trace", torch.trace, (5, 4)),
    case("tril", lambda x: x.tril(-1), S),
    case("triu", lambda x: x.triu(1), S),
    case("unfold_axis", lambda x: x.unfold(1, 3, 2), S),
    case("unfold_twice", lambda x: x.unfold(2, 3, 2).unfold(3, 2, 2), (2, 3, 7, 6)),
]
PARTS = [
    case("slice", lambda x: x[:, 1:4], S),
    case("slice_negative", lambda x: x[..., -3:-1], S),
    case("slice_step", lambda x: x[:, ::2, 1::3], S),
    case("slice_both_axes", lambda x: x[1:, :, :2], S),
    case("space_to_depth", lambda x: torch.cat([x[..., a::2, b::2] for a in (0, 1) for b in (0, 1)], 1), (2, 3, 8, 6)),
    case("select", lambda x: x[:, -1], S),
    case("select_first", lambda x: x.select(0, 1), S),
    case("none_and_ellipsis", lambda x: x[None, ..., 0, None], S),
    case("narrow", lambda x: x.narrow(1, 1, 3), S),
    case("split", lambda x: x.split(2, 1), S),
    case("split_sizes", lambda x: x.split([1, 4], 1)[1], S),
    case("chunk", lambda x: torch.mul(*x.chunk(2, -1)), S),
    case("chunk_uneven", lambda x: x.chunk(3, 1)[2], S),
    case("tensor_split", lambda x: x.tensor_split(3, 1)[1], S),
    case("unbind", lambda x: x.unbind(1)[2] + x.unbind(1)[4], S),
    case("cat", lambda x, y: torch.cat([x, y, x], 1), S, (3, 2, 4)),
    case("cat_last", lambda x, y: torch.cat((x, y), -1), S, (3, 5, 1)),
    case("cat_of_empty", lambda x: torch.cat([x, x[:, :0]], 1), S),
    case("stack", lambda x, y: torch.stack([x, y, x], 1), S, S),
    case("hstack", lambda x, y: torch.hstack([x, y]), S, S),
    case("column_stack", lambda x, y: torch.column_stack([x, y]), (5,), (5,)),
    case("repeat", lambda x: x.repeat(2, 1, 3), S),
    case("repeat_new_axis", lambda x: x.repeat(2, 1, 1, 2), S),
    case("tile", lambda x: x.tile(2, 1), S),
    case("repeat_interleave", lambda x: x.repeat_interleave(3, 1), S),
    case("flip", lambda x: x.flip(0, 2), S),
    case("fliplr", torch.fliplr, S),
    case("rot90", lambda x: torch.rot90(x, 1, (1, 2)), S),
    case("roll", lambda x: x.roll((1, -2), (1, 2)), S),
    case("roll_flat", lambda x: x.roll(7), S),
    case("meshgrid", lambda x, y: torch.meshgrid(x, y, indexing="ij"), (3,), (4,)),
    case("cartesian", lambda x, y: x[:, None] * y[None, :], (3,), (4,)),
    case("block_diag", lambda x, y: torch.block_diag(x, y), (2, 3), (3, 2)),
    case("kron", torch.kron, (2, 3), (3, 2)),
]


def assign_slice(x: Tensor, y: Tensor) -> Tensor:
    result = x * 1.0
    result[:, 1:3] = y
    return result


def assign_steps(x: Tensor, y: Tensor) -> Tensor:
    result = torch.zeros(3, 5, 4)
    result[:, ::2, ::2] = x
    result[..., 1::2] = y
    return result


def assign_scalar(x: Tensor) -> Tensor:
    result = x.clone()
    result[1, 2:] = 0.5
    result[..., 0] *= 2
    return result


def add_into_slice(x: Tensor, y: Tensor) -> Tensor:
    result = x.clone()
    result[:, :2] += y
    return result


def assign_mask(x: Tensor) -> Tensor:
    result = x * 2
    result[torch.arange(5) % 2 == 0] = 1.5
    return result


def assign_rows(x: Tensor, y: Tensor) -> Tensor:
    result = x.clone()
    result[torch.tensor([3, 0])] = y
    return result


def shift_channels(x: Tensor) -> Tensor:
    """Temporal shift: a fold of the channels moves one step each way."""
    out = torch.zeros_like(x)
    out[:-1, :2] = x[1:, :2]
    out[1:, 2:4] = x[:-1, 2:4]
    out[:, 4:] = x[:, 4:]
    return out


ASSIGNMENTS = [
    case("assign_slice", assign_slice, S, (3, 2, 4)),
    case("assign_broadcast", assign_slice, S, (4,)),
    case("assign_steps", assign_steps, (3, 3, 2), (3, 5, 2)),
    case("assign_scalar", assign_scalar, S),
    case("add_into_slice", add_into_slice, S, (3, 2, 4)),
    case("assign_mask", assign_mask, (5, 4)),
    case("assign_rows", assign_rows, (5, 4), (2, 4)),
    case("shift_channels", shift_channels, (4, 6, 3, 3)),
    case("slice_scatter", lambda x, y: x.slice_scatter(y, 1, 0, 4, 2), S, (3, 2, 4)),
    case("select_scatter", lambda x, y: x.select_scatter(y, 1, 2), S, (3, 4)),
    case("diagonal_scatter", lambda x, y: x.diagonal_scatter(y), (4, 4), (4,)),
    case("fill_diagonal", lambda x: (x * 1).fill_diagonal_(0.0), (4, 4)),
    case("copy", lambda x, y: (x * 0 + 1).copy_(y) * x, S, (4,)),
    case("in_place_arithmetic", lambda x, y: x.mul(2).add_(y).div_(3).sub_(1).mul_(y), S, S),
    case("new_tensors", lambda x: x + x.new_zeros(4) + x.new_ones(5, 1) + x.new_full((1,), 0.5), S),
    case("like_tensors", lambda x: x * torch.ones_like(x) + torch.zeros_like(x) + torch.full_like(x, 2), S),
    case("linspace", lambda x: x * torch.linspace(-1, 1, 4) + torch.arange(5.0)[:, None] + torch.eye(5, 4), S),
]
IMAGES = [
    image("image_cat", lambda x: torch.cat([x, x * 2, x[:, :1]], 1)),
    image("image_cat_rows", lambda x: torch.cat([x, x[:, :, 1:3]], 2)),
    image("image_cat_plain", lambda x: torch.cat([x, torch.linspace(0, 1, 9).expand(2, 1, 7, 9)], 1)),
    image("image_cat_coordinates", lambda x: torch.cat([x, torch.arange(7.0)[:, None].expand(2, 1, 7, 9)], -3)),
    image("image_stack", lambda x: torch.stack([x, x * 2], 2).flatten(1, 2)),
    image("image_slice_channels", lambda x: x[:, 1:4]),
    image("image_slice_step", lambda x: x[:, ::2, ::2, 1::2]),
    image("image_slice_batch", lambda x: x[1:]),
    image("image_split", lambda x: torch.cat([x.split([2, 3, 1], 1)[index] for index in (2, 0, 1)], 1)),
    image("image_chunk_rows", lambda x: torch.maximum(*x[:, :, :6].chunk(2, 2))),
    image("image_select_channel", lambda x: x[:, 2]),
    image("image_permute", lambda x: x.permute(0, 2, 3, 1)),
    image("image_permute_twice", lambda x: (x.permute(0, 2, 3, 1) * torch.arange(6.0)).permute(0, 3, 1, 2)),
    image("image_transpose", lambda x: x.transpose(2, 3)),
    image("image_permute_odd", lambda x: x.permute(3, 1, 0, 2)),
    image("image_to_tokens", lambda x: x.flatten(2).transpose(1, 2)),
    image("image_to_tokens_and_back", lambda x: x.flatten(2).mT.softmax(-1).mT.unflatten(2, (7, 9))),
    image("image_flatten", lambda x: x.flatten(1)),
    image("image_shuffle", lambda x: x.view(2, 3, 2, 7, 9).transpose(1, 2).reshape(IMAGE)),
    image("image_channel_shuffle", lambda x: F.channel_shuffle(x, 3)),
    image("image_pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), (2, 8, 3, 5)),
    image("image_pixel_unshuffle", lambda x: F.pixel_unshuffle(x, 2), (2, 3, 6, 8)),
    image("image_focus", lambda x: torch.cat([x[..., a::2, b::2] for b in (0, 1) for a in (0, 1)], 1), (2, 3, 6, 8)),
    image("image_expand", lambda x: x.mean((2, 3), keepdim=True).expand(-1, -1, 4, 5)),
    image("image_expand_channels", lambda x: x[:, :1].expand(-1, 5, -1, -1)),
    image("image_repeat", lambda x: x.repeat(1, 2, 1, 1)),
    image("image_repeat_interleave", lambda x: x.repeat_interleave(2, 1)),
    image("image_flip", lambda x: x.flip(3)),
    image("image_roll", lambda x: x.roll((2, 3), (2, 3))),
    image("image_assign", lambda x: assign_slice(x, x[:, 3:5])),
    image("image_unfold", lambda x: x.unfold(2, 3, 2).unfold(3, 3, 3)),
    image(
        "image_windows", lambda x: x.view(2, 6, 2, 4, 2, 3).permute(0, 2, 4, 3, 5, 1).reshape(8, 12, 6), (2, 6, 8, 6)
    ),
    image("image_to_volume", lambda x: x.view(2, 2, 3, 7, 9).mean(2)),
    image("image_groups_summed", lambda x: x.view(2, 3, 2, 7, 9).sum(1)),
    image("image_squeeze", lambda x: x.mean((2, 3), keepdim=True).squeeze(-1).squeeze(-1)),
    image("image_unbind", lambda x: x.unbind(1)[1] + x.unbind(1)[4]),
]
THEMES = {"views": VIEWS, "parts": PARTS, "assignments": ASSIGNMENTS, "moved_images": IMAGES}
