"""Pools, resizes and paddings, on plain tensors and on images."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.operators.harness import case, distinct, image

X1, X2, X3 = (2, 3, 11), (2, 3, 7, 9), (2, 3, 5, 6, 7)


def pool_and_unpool(x: Tensor) -> Tensor:
    y, where = F.max_pool2d(x, 2, return_indices=True)
    return F.max_unpool2d(y * 2, where, 2, output_size=x.shape[2:])


POOLS = [
    image("max_pool", lambda x: F.max_pool2d(x, 3, 2, 1)),
    image("max_pool_plain", lambda x: F.max_pool2d(x, 2)),
    image("max_pool_ceil", lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True), (2, 6, 8, 8)),
    image("max_pool_ceil_padded", lambda x: F.max_pool2d(x, 2, 2, 1, ceil_mode=True)),
    image("max_pool_dilated", lambda x: F.max_pool2d(x, 2, 1, 1, dilation=3)),
    image("max_pool_overlapping", lambda x: F.max_pool2d(x, (3, 5), (1, 2), (1, 2))),
    image("max_pool_sppf", lambda x: torch.cat([x, F.max_pool2d(x, 5, 1, 2)], 1)),
    image("max_pool_large", lambda x: F.max_pool2d(x, (7, 9))),
    image("max_pool_gaps", lambda x: F.max_pool2d(x, 1, 2)),
    image("max_pool_of_equals", lambda x: F.max_pool2d(x.relu(), 3, 2, 1)),
    image("min_pool", lambda x: -F.max_pool2d(-x, 2, ceil_mode=True)),
    image("avg_pool", lambda x: F.avg_pool2d(x, 3, 2, 1)),
    image("avg_pool_uncounted", lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)),
    image("avg_pool_ceil", lambda x: F.avg_pool2d(x, 2, 2, ceil_mode=True)),
    image("avg_pool_ceil_padded", lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), (2, 6, 8, 8)),
    image("avg_pool_ceil_uncounted", lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False)),
    image("avg_pool_divisor", lambda x: F.avg_pool2d(x, 2, 1, divisor_override=3)),
    image("avg_pool_oblong", lambda x: F.avg_pool2d(x, (1, 9), 1, (0, 4))),
    image("adaptive_avg", lambda x: F.adaptive_avg_pool2d(x, 1)),
    image("adaptive_avg_uneven", lambda x: F.adaptive_avg_pool2d(x, (3, 4))),
    image("adaptive_avg_up", lambda x: F.adaptive_avg_pool2d(x, (10, 12))),
    image("adaptive_avg_axis", lambda x: F.adaptive_avg_pool2d(x, (None, 1))),
    image("adaptive_max", lambda x: F.adaptive_max_pool2d(x, 1)),
    image("adaptive_max_uneven", lambda x: F.adaptive_max_pool2d(x, (3, 4))),
    image("adaptive_max_even", lambda x: F.adaptive_max_pool2d(x, (2, 4)), (2, 6, 6, 8)),
    image("lp_pool", lambda x: F.lp_pool2d(x.abs() + 0.1, 2, 3, 2)),
    image("lp_pool_3", lambda x: F.lp_pool2d(x.abs() + 0.1, 3, 2)),
    image("gem_pool", lambda x: F.avg_pool2d(x.clamp(min=1e-3).pow(3), (7, 9)).pow(1 / 3)),
    image("unpool", pool_and_unpool),
    image("max_pool_and_indices", lambda x: F.max_pool2d(x, 2, return_indices=True)[0]),
    image("soft_pool", lambda x: F.avg_pool2d(x.exp() * x, 2) / F.avg_pool2d(x.exp(), 2)),
    image(
        "blur_pool", lambda x: F.conv2d(F.pad(x, [1] * 4, "reflect"), torch.ones(6, 1, 3, 3) / 9, stride=2, groups=6)
    ),
]
OTHER_POOLS = [
    case("max_pool_batchless", lambda x: F.max_pool2d(x, 2), (3, 6, 8), draw=distinct),
    case("avg_pool_batchless", lambda x: F.avg_pool2d(x, 3, 1, 1), (3, 6, 8)),
    case("adaptive_avg_batchless", lambda x: F.adaptive_avg_pool2d(x, (2, 3)), (3, 6, 8)),
    case("max_pool1d", lambda x: F.max_pool1d(x, 3, 2, 1), X1, draw=distinct),
    case("max_pool1d_ceil_dilated", lambda x: F.max_pool1d(x, 2, 2, 1, 2, ceil_mode=True), X1, draw=distinct),
    case("max_pool1d_indices", lambda x: F.max_pool1d(x, 2, return_indices=True), X1, draw=distinct),
    case("max_pool2d_indices", lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), X2, draw=distinct),
    case("avg_pool1d", lambda x: F.avg_pool1d(x, 3, 2, 1), X1),
    case("avg_pool1d_ceil", lambda x: F.avg_pool1d(x, 2, 2, 0, True, False), X1),
    case("adaptive_avg1d", lambda x: F.adaptive_avg_pool1d(x, 4), X1),
    case("adaptive_max1d", lambda x: F.adaptive_max_pool1d(x, 4), X1, draw=distinct),
    case("lp_pool1d", lambda x: F.lp_pool1d(x.abs() + 0.1, 2, 3), X1),
    case("max_pool3d", lambda x: F.max_pool3d(x, 3, 2, 1), X3, draw=distinct),
    case("max_pool3d_oblong", lambda x: F.max_pool3d(x, (1, 2, 2), ceil_mode=True), X3, draw=distinct),
    case("max_pool3d_dilated", lambda x: F.max_pool3d(x, 2, 1, 0, dilation=(2, 1, 3)), X3, draw=distinct),
    case("avg_pool3d", lambda x: F.avg_pool3d(x, 2), X3),
    case("avg_pool3d_padded", lambda x: F.avg_pool3d(x, 3, 2, 1, count_include_pad=False), X3),
    case("avg_pool3d_ceil_divisor", lambda x: F.avg_pool3d(x, 2, ceil_mode=True, divisor_override=5), X3),
    case("adaptive_avg3d", lambda x: F.adaptive_avg_pool3d(x, (2, 3, 4)), X3),
    case("adaptive_avg3d_one", lambda x: F.adaptive_avg_pool3d(x, 1), X3),
    case("adaptive_max3d", lambda x: F.adaptive_max_pool3d(x, (2, 3, 4)), X3, draw=distinct),
    case("adaptive_max3d_one", lambda x: F.adaptive_max_pool3d(x, 1), X3, draw=distinct),
    case("unpool_plain", pool_and_unpool, X2, draw=distinct),
    case("unpool1d", lambda x: F.max_unpool1d(*F.max_pool1d(x, 2, return_indices=True), 2), (2, 3, 8), draw=distinct),
]


def resize(**options: Any) -> Any:
    return lambda x: F.interpolate(x, **options)


RESIZES = [
    image("nearest", resize(scale_factor=2)),
    image("nearest_size", resize(size=(10, 5))),
    image("nearest_fraction", resize(scale_factor=1.7)),
    image("nearest_down", resize(scale_factor=0.5)),
    image("nearest_exact", resize(size=(10, 13), mode="nearest-exact")),
    image("nearest_exact_scale", resize(scale_factor=(0.6, 2), mode="nearest-exact")),
    image("bilinear", resize(scale_factor=2, mode="bilinear")),
    image("bilinear_aligned", resize(scale_factor=2, mode="bilinear", align_corners=True)),
    image("bilinear_size", resize(size=(10, 5), mode="bilinear")),
    image("bilinear_fraction", resize(scale_factor=1.3, mode="bilinear")),
    image("bilinear_recomputed", resize(scale_factor=1.3, mode="bilinear", recompute_scale_factor=True)),
    image("bilinear_down", resize(scale_factor=0.4, mode="bilinear", align_corners=True)),
    image("bilinear_from_one", lambda x: F.interpolate(x.mean((2, 3), keepdim=True), (4, 5), mode="bilinear")),
    image("bilinear_same", resize(size=(7, 9), mode="bilinear", align_corners=False)),
    image("bicubic", resize(scale_factor=2, mode="bicubic")),
    image("bicubic_aligned", resize(size=(5, 12), mode="bicubic", align_corners=True)),
    image("bilinear_antialias", resize(size=(3, 4), mode="bilinear", antialias=True)),
    image("bicubic_antialias", resize(scale_factor=0.5, mode="bicubic", antialias=True)),
    image("area", resize(size=(3, 4), mode="area")),
    image("area_up", resize(scale_factor=2, mode="area")),
    case("nearest1d", resize(scale_factor=2), X1),
    case("nearest_exact1d", resize(size=7, mode="nearest-exact"), X1),
    case("linear1d", resize(scale_factor=1.5, mode="linear"), X1),
    case("nearest3d", resize(scale_factor=(1, 2, 2)), X3),
    case("trilinear", resize(size=(7, 4, 9), mode="trilinear", align_corners=True), X3),
    case("nearest_exact3d", resize(size=(7, 4, 9), mode="nearest-exact"), X3),
    case("bilinear_plain", resize(size=(4, 12), mode="bilinear"), X2),
    case("upsample_module", nn.Upsample(scale_factor=3, mode="bicubic"), X2),
    case("upsample_twice_mode", nn.UpsamplingBilinear2d(scale_factor=2), X2),
    case("area1d", resize(size=4, mode="area"), X1),
    image("resize_like", lambda x: F.interpolate(F.avg_pool2d(x, 2), size=x.shape[-2:], mode="nearest")),
]


def warp(x: Tensor, theta: Tensor, **options: Any) -> Tensor:
    grid = F.affine_grid(theta * 0.2 + torch.eye(2, 3), [2, 3, 5, 6], align_corners=False)
    return F.grid_sample(x, grid, align_corners=False, **options)


PADS = [
    image("pad", lambda x: F.pad(x, [1, 2, 0, 3])),
    image("pad_value", lambda x: F.pad(x, [1, 1, 1, 1], value=0.7)),
    image(
        "pad_minus_infinite", lambda x: F.max_pool2d(F.pad(x, [0, 1, 0, 1], value=float("-inf")), 2, 2), (2, 6, 7, 7)
    ),
    image("pad_crop", lambda x: F.pad(x, [-1, -2, -1, 0])),
    image("pad_and_crop", lambda x: F.pad(x, [2, -3, -1, 1])),
    image("pad_channels", lambda x: F.pad(x, [0, 0, 0, 0, 1, 2])),
    image("pad_all_axes", lambda x: F.pad(x, [1, 0, 0, 1, 2, 0, 0, 1])),
    image("pad_last_only", lambda x: F.pad(x, [1, 2])),
    image("pad_reflect", lambda x: F.pad(x, [1, 2, 3, 1], "reflect")),
    image("pad_replicate", lambda x: F.pad(x, [1, 2, 3, 0], "replicate")),
    image("pad_circular", lambda x: F.pad(x, [1, 2, 3, 0], "circular")),
    case("pad1d", lambda x: F.pad(x, [2, 1]), X1),
    case("pad1d_reflect", lambda x: F.pad(x, [2, 1], "reflect"), X1),
    case("pad1d_replicate", lambda x: F.pad(x, [2, 1], "replicate"), X1),
    case("pad1d_circular", lambda x: F.pad(x, [2, 1], "circular"), X1),
    case("pad3d", lambda x: F.pad(x, [1, 0, 1, 1, 0, 2], value=1.5), X3),
    case("pad3d_reflect", lambda x: F.pad(x, [1, 2, 1, 1, 2, 1], "reflect"), X3),
    case("pad3d_replicate", lambda x: F.pad(x, [1, 2, 1, 1, 2, 0], "replicate"), X3),
    case("pad3d_circular", lambda x: F.pad(x, [1, 2, 1, 1, 2, 0], "circular"), X3),
    case("pad_2d_reflect_of_3d", lambda x: F.pad(x, [1, 1, 2, 2], "reflect"), (3, 5, 6)),
    case("zero_pad_module", nn.ZeroPad2d((1, 0, 2, 1)), X2),
    case("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), (2, 8, 3, 5)),
    case("pixel_unshuffle", lambda x: F.pixel_unshuffle(x, 3), (2, 2, 6, 9)),
    case("channel_shuffle", lambda x: F.channel_shuffle(x, 2), (2, 6, 3, 5)),
    case("grid_sample", warp, X2, (2, 2, 3)),
    case("grid_sample_border", lambda x, t: warp(x, t, padding_mode="border"), X2, (2, 2, 3)),
    case("grid_sample_nearest", lambda x, t: warp(x, t, mode="nearest") + t.sum(), X2, (2, 2, 3)),
    case("grid_sample_constant", lambda x: warp(x, torch.ones(2, 2, 3)), X2),
    case("roll_windows", lambda x: x.roll((-1, -2), (2, 3)).view(2, 3, 2, 3, 3, 3).transpose(3, 4), (2, 3, 6, 9)),
]
THEMES = {"pools": POOLS, "other_pools": OTHER_POOLS, "resizes": RESIZES, "pads": PADS}
