"""Calls of every gf operator, over its options."""

from __future__ import annotations

import torch
from torch import Tensor

from gfcompile.geometry.channel_draws import Draw
from gfcompile.geometry.layouts import WeightLayout
from gfcompile.ops import gf
from tests.export.aten_cases import AVG_POOLS, MAX_POOLS, positive, real, truth, whole
from tests.export.harness import Case

GRIDS = {  # of a map of 5x7
    "clipped": ([3, 2, -1, 0, 5], [2, 4, 0, 1, 7]),
    "beside": ([4, 2, -4, 0, 5], [3, 4, 0, 0, 7]),  # empty patches on either side
    "outside": ([2, 2, -5, 0, 5], [1, 3, 7, 0, 7]),  # nothing but empty patches
    "partial": ([1, 3, 1, 0, 5], [2, 2, 3, 0, 7]),  # most of the map lies in no patch
    "whole": ([1, 5, 0, 0, 5], [1, 7, 0, 0, 7]),
    "larger": ([1, 20, -7, 0, 5], [1, 20, -6, 0, 7]),
    "pixels": ([5, 1, 0, 0, 5], [7, 1, 0, 0, 7]),
    "fine": ([6, 1, -1, 0, 5], [5, 2, 0, 1, 7]),  # nested in "clipped"
}
SIZE = [5, 7]
WEIGHTS = (([16, 4, 3, 3], 1), ([6, 2, 3, 2], 2), ([4, 1, 3, 3], 4), ([5, 3, 1, 1], 1))


def last(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1).contiguous()


def packed(shape: list[int], groups: int) -> Tensor:
    return WeightLayout.for_conv(shape, groups).pack(real(*shape))


def _patches() -> list[Case]:
    cases, image = [], real(2, 3, *SIZE)
    for rows, cols in GRIDS.values():
        q = real(2, 3, rows[0], cols[0])
        masks = [truth(2, 3, *SIZE), truth(1, 3, *SIZE), truth(1, *SIZE)]
        for is_last in (False, True):
            x, y = (last(image), last(q)) if is_last else (image, q)
            cases += [
                Case(gf.patch_sum.default, (x, rows, cols), {"channels_last": is_last}),
                Case(gf.patch_mean.default, (x, rows, cols, is_last)),
                Case(gf.patch_broadcast.default, (y, rows, cols, SIZE, is_last)),
                Case(gf.scale_by_area.default, (y, rows, cols, False), {"channels_last": is_last}),
                Case(gf.scale_by_area.default, (y, rows, cols, True, is_last)),
            ]
            views = [last(mask.expand(1, 3, *SIZE) if mask.dim() < 4 else mask) if is_last else mask for mask in masks]
            for count, wanted in ((1, [False]), (2, [True, False]), (3, [True, True, False])):
                cases.append(Case(gf.mask_count.default, (views[:count], wanted, rows, cols, is_last)))
            shape = [2, *SIZE, 3] if is_last else [2, 3, *SIZE]
            bits = [gf.pack_mask(truth(*shape)), gf.pack_mask(~truth(*shape) | (whole(*shape) == 0))]
            cases.append(Case(gf.packed_mask_count.default, (bits, [True, True], shape, rows, cols, is_last)))
    cases.append(Case(gf.mask_count.default, ([truth(1, 2, 40, 20)], [True], [2, 20, 0, 0, 40], [1, 20, 0, 0, 20])))
    for coarse, fine in (("clipped", "fine"), ("partial", "pixels"), ("beside", "pixels"), ("whole", "clipped")):
        grids = (*GRIDS[coarse], *GRIDS[fine])
        q = real(2, 3, grids[0][0], grids[1][0])
        cases.append(Case(gf.regrid.default, (q, *grids)))
        cases.append(Case(gf.regrid.default, (last(q), *grids), {"channels_last": True}))
    return cases


def _bits() -> list[Case]:
    shapes = ([2, 3, 5, 7], [8], [1, 1, 3, 3], [4, 4])
    cases = [Case(gf.pack_mask.default, (truth(*shape),)) for shape in shapes]
    return cases + [Case(gf.unpack_mask.default, (gf.pack_mask(truth(*shape)), shape)) for shape in shapes]


def _mixing() -> list[Case]:
    cases = []
    for shape, groups in WEIGHTS:
        g, x_tilde = real(2, shape[0], 3, 4), real(2, shape[1] * groups, 3, 4)
        for taps in ([0, 0], [1, 1], [2, 0], [0, 3]):
            cases.append(Case(gf.channel_mix.default, (g, real(*shape), groups, taps)))
            cases.append(Case(gf.channel_mix_nhwc.default, (last(g), packed(shape, groups), shape, groups, taps)))
        cases.append(Case(gf.channel_mix_weight.default, (g, x_tilde, groups, shape[2:])))
        cases.append(Case(gf.channel_mix_weight_nhwc.default, (last(g), last(x_tilde), shape, groups)))
    return cases


def _convolutions() -> list[Case]:
    cases = []
    for shape, groups in WEIGHTS:
        for stride, padding, dilation in (([1, 1], [1, 1], [1, 1]), ([2, 3], [0, 2], [1, 2])):
            settings = (stride, padding, dilation, groups)
            x, w = real(2, 8, 9, shape[1] * groups), packed(shape, groups)
            gy = torch.randn_like(gf.conv2d_nhwc(x, w, shape, *settings))
            plain = (gy.permute(0, 3, 1, 2).contiguous(), x.permute(0, 3, 1, 2).contiguous(), real(*shape), *settings)
            cases += [
                Case(gf.conv2d_nhwc.default, (x, w, shape, *settings)),
                Case(gf.conv2d_input_grad_nhwc.default, (gy, w, shape, [8, 9], *settings)),
                Case(gf.conv2d_weight_grad_nhwc.default, (gy, x, shape, *settings)),
                Case(gf.filtered_convolution_backward.default, (*plain, 2, False)),
                Case(gf.filtered_convolution_backward.default, (*plain, 4, False), read=(1,)),
            ]
    return cases


def _winograd() -> list[Case]:
    cases, shape = [], [16, 8, 3, 3]
    for edge, padding in ((2, [1, 1]), (4, [0, 2])):
        u = gf.winograd_weight(packed(shape, 1), shape, edge)
        cases += [
            Case(gf.winograd_weight.default, (packed(shape, 1), shape, edge)),
            Case(gf.winograd_conv2d_nhwc.default, (real(2, 8, 9, 8), u, padding, edge)),
            Case(gf.winograd_conv2d_nhwc.default, (real(2, 8, 9, 8), packed(shape, 1), padding, edge)),
        ]
    return cases


def _pools() -> list[Case]:
    cases, x = [], last(real(2, 3, 7, 8))
    for given in MAX_POOLS:
        kernel, stride, padding, dilation, ceil = (*given, *([], [0], [1], False)[len(given) - 1 :])
        settings = tuple(list(part) * (2 // len(part)) for part in (kernel, stride or kernel, padding, dilation))
        y, taps = gf.max_pool2d_nhwc(x, *settings, ceil)
        cases += [
            Case(gf.max_pool2d_nhwc.default, (x, *settings, ceil)),
            Case(gf.max_pool2d_values_nhwc.default, (x, *settings, ceil)),
            Case(gf.pool_positions_nhwc.default, (taps, 8, *settings)),
            Case(gf.max_pool2d_backward_nhwc.default, (torch.randn_like(y), taps, [7, 8], *settings)),
        ]
    for given in AVG_POOLS:
        kernel, stride, padding, ceil, count_pad, divisor = (*given, *([], [0], False, True, 0)[len(given) - 1 :])
        settings = tuple(list(part) * (2 // len(part)) for part in (kernel, stride or kernel, padding))
        gy = torch.randn_like(gf.avg_pool2d_nhwc(x, *settings, ceil, count_pad, divisor))
        cases.append(Case(gf.avg_pool2d_nhwc.default, (x, *settings, ceil, count_pad, divisor)))
        cases.append(Case(gf.avg_pool2d_backward_nhwc.default, (gy, [7, 8], *settings, ceil, count_pad, divisor)))
    for size in ([1, 1], [3, 2]):
        cases.append(Case(gf.adaptive_avg_pool2d_nhwc.default, (x, size)))
        cases.append(Case(gf.adaptive_avg_pool2d_backward_nhwc.default, (real(2, *size, 3), [7, 8])))
    return cases


def _moves() -> list[Case]:
    x = real(2, 3, 4, 5)
    maps = (("nearest", [0, 0]), ("linear", [1, 0]), ("linear", [0, 1.9]), ("cubic", [0, 0]))
    cases = []
    for axis in (2, 3):
        length = x.shape[axis]
        for kind, settings in maps:
            grown = gf.axis_map(x, axis, 7, kind, settings, False)
            cases.append(Case(gf.axis_map.default, (x, axis, 7, kind, settings, False)))
            cases.append(Case(gf.axis_map.default, (grown, axis, length, kind, settings, True)))
        cases.append(Case(gf.axis_map.default, (x, axis, length + 3, "reflect", [1, 2], False)))
    one, three = whole(12, 1, below=25), whole(6, 3, below=13)
    cases += [
        Case(gf.move.default, ([real(24)], one.int(), [3, 4])),
        Case(gf.move.default, ([real(2, 3, 2), real(2, 6)], three.int(), [2, 6])),
    ]
    base, places = real(3, 7), torch.tensor([[2, 0, 6], [1, 3, 5], [4, 4, 4]])
    cases.append(Case(gf.put.default, (base, places, real(3, 3), True)))
    cases.append(Case(gf.put.default, (base, places[:2], real(2, 3), False)))
    seed = torch.tensor(-7)
    return cases + [Case(gf.uniform.default, (seed + k, stream, [3, 5]), tolerance=0) for k, stream in ((0, 0), (9, 3))]


def _updates() -> list[Case]:
    w, v, s, lr = real(4, 3, 2, 2), real(3, 4, 2, 2).reshape(4, 3, 2, 2), positive(4, 3, 2, 2), torch.tensor(0.1)
    one, gain = torch.tensor(0.19), torch.tensor(0.7)
    cases = []
    for g in (real(4, 3, 2, 2).flip(0), real(4, 3, 1, 1)):
        cases += [
            Case(gf.sgd_update_plain.default, (w, g, lr, decay, 2.0)) for decay in (0.0, 0.1)
        ] + [
            Case(gf.sgd_update.default, (w, v, g, lr, gain, 0.9, 0.1, True, 2.0)),
            Case(gf.sgd_update.default, (w, v, g, lr, None, 0.9, 0.0, False, 1.0)),
            Case(gf.adam_update.default, (w, [v, s], g, lr, one, one, 0.9, 0.99, 1e-8, 0.1, False, 1.0)),
            Case(gf.adam_update.default, (w, [v, s, s + 1], g, lr, one, one, 0.9, 0.99, 1e-3, 0.1, True, 2.0)),
            Case(gf.rmsprop_update.default, (w, [s], g, lr, 0.99, 1e-8, 0.1, 0.0, False, 1.0)),
            Case(gf.rmsprop_update.default, (w, [s + 9, v, v - 1], g, lr, 0.9, 1e-8, 0.1, 0.9, True, 2.0)),
            Case(gf.square_sum.default, (g, 4)),
        ]  # fmt: skip
    counts = [torch.tensor(float(count)) for count in (1, 2, 1000)]
    cases += [Case(gf.sgd_gain.default, (count, 0.3)) for count in counts]
    cases += [Case(gf.bias_correction.default, (count, beta)) for count in counts for beta in (0.0, 0.9, 0.9999)]
    sums = [torch.tensor(2.0), torch.tensor(3.0)]
    return cases + [Case(gf.clip_coefficient.default, (sums, limit)) for limit in (0.5, 50.0)]


def _channels() -> list[Case]:
    """Drawn of all, of each group, and whole groups: of a depthwise kernel, and of one with several channels."""
    cases = []
    drawn = (([16, 5, 3, 3], 1, [0, 3]), ([6, 3, 3, 2], 2, [1, 2, 3, 5]), ([8, 1, 3, 3], 8, [2, 5]))
    for shape, groups, numbers in (*drawn, ([12, 2, 1, 1], 6, [2, 3, 8, 9])):
        channels = torch.tensor(numbers, dtype=torch.int32)
        draw = Draw.of(shape, groups, len(numbers))
        x, whole, part = real(2, draw.in_channels, 3, 2), real(*shape), real(*draw.drawn_shape(shape))
        cases.append(Case(gf.take_channels.default, (x, channels, 1, 1)))
        cases.append(Case(gf.take_channels.default, (last(x), channels, 1, 1), {"channels_last": True}))
        if draw.takes_groups:
            sizes = (draw.group_inputs, draw.group_outputs)
            cases.append(Case(gf.take_channels.default, (real(2, shape[0], 3, 2), channels, *sizes)))
        for is_packed in (False, True):
            options = {"packed": is_packed}
            w = packed(shape, groups) if is_packed else whole
            values = packed(draw.drawn_shape(shape), draw.drawn_groups) if is_packed else part
            cases.append(Case(gf.take_weights.default, (w, channels, shape, groups), options))
            cases.append(Case(gf.put_weights.default, (w, values, channels, shape, groups), options))
            cases.append(Case(gf.spread_weights.default, (values, channels, shape, groups), options))
    return cases


CASES = [
    *_patches(),
    *_bits(),
    *_mixing(),
    *_convolutions(),
    *_winograd(),
    *_pools(),
    *_moves(),
    *_updates(),
    *_channels(),
]
