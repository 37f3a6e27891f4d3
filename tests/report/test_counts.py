"""FLOPs and bytes against numbers worked out by hand from the paper's equations."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gfcompile.geometry.convolution import ConvGeometry
from gfcompile.report.counts import exact_flops, filtered_flops, kept_bytes, patches

# the layer of the paper's Figure 3: U-Net, 120x160, 192 -> 64 channels, 3x3
UNET = ConvGeometry(1, 192, 64, (120, 160), (120, 160), (3, 3), (1, 1), (1, 1), (1, 1), 1)
RESNET_LAST = ConvGeometry(1, 512, 512, (7, 7), (7, 7), (3, 3), (1, 1), (1, 1), (1, 1), 1)


def test_exact_is_equation_1_three_times() -> None:
    flops = exact_flops(UNET)
    assert flops.forward == flops.input_gradient == flops.weight_gradient == 2 * 192 * 64 * 160 * 120 * 3 * 3
    assert flops.backward == 2 * flops.forward
    assert flops.total == 3 * flops.forward


def test_filtered_input_gradient_is_equation_15() -> None:
    assert filtered_flops(UNET, 4).input_gradient == 30 * 40 * 192 * (2 * 64 - 1)


def test_patches_are_rounded_up() -> None:
    assert patches(RESNET_LAST, 2) == 4 * 4
    assert filtered_flops(RESNET_LAST, 2).input_gradient == 16 * 512 * (2 * 512 - 1)


def test_one_patch_over_the_map_is_equation_16() -> None:
    assert filtered_flops(UNET, 160).input_gradient == 2 * 192 * 64 - 192


def test_filtered_weight_gradient_is_one_inner_product_a_channel_pair() -> None:
    batch = replace(UNET, batch=3)
    assert filtered_flops(batch, 4).weight_gradient == 192 * 64 * (2 * 3 * 1200 - 1)


def test_overhead_is_the_papers_ratio() -> None:
    flops = filtered_flops(UNET, 4)
    # a sum of r*r numbers takes r*r - 1 additions, which the paper rounds up
    assert flops.forward_overhead / flops.forward == pytest.approx(1 / (2 * 64 * 9), rel=0.1)
    means = flops.backward_overhead - 192 * 64 * (9 - 1)
    assert means == 64 * (120 * 160 - 1200)
    assert means / flops.input_gradient == pytest.approx((4**2 - 1) / (2 * 192), rel=0.01)
    assert (flops.forward_overhead + flops.backward_overhead) / flops.total < 0.01
    gradients = flops.input_gradient + flops.weight_gradient
    assert flops.total == flops.forward + flops.forward_overhead + gradients + flops.backward_overhead


def test_no_input_gradient_no_kernel_sums() -> None:
    flops = filtered_flops(UNET, 4, input_gradient=False)
    assert flops.input_gradient == 0
    assert flops.backward_overhead == 64 * (120 * 160 - 1200)
    assert exact_flops(UNET, input_gradient=False).backward == exact_flops(UNET).forward


def test_groups_divide_the_channel_pairs() -> None:
    depthwise = ConvGeometry(2, 96, 96, (14, 14), (14, 14), (3, 3), (1, 1), (1, 1), (1, 1), 96)
    assert exact_flops(depthwise).forward == 2 * 2 * 96 * 14 * 14 * 9
    assert filtered_flops(depthwise, 2).input_gradient == 2 * 49 * 96 * (2 - 1)
    assert filtered_flops(depthwise, 2).weight_gradient == 96 * (2 * 2 * 49 - 1)
    grouped = replace(depthwise, in_channels=8, out_channels=12, groups=4)
    assert exact_flops(grouped).forward == 2 * 2 * (8 * 12 // 4) * 14 * 14 * 9


def test_a_dilation_of_the_patch_or_more_keeps_its_taps() -> None:
    dilated = replace(RESNET_LAST, dilation=(2, 2), padding=(2, 2))
    flops = filtered_flops(dilated, 2)
    assert flops.input_gradient == 16 * 512 * (2 * 512 * 9 - 1)
    assert flops.backward_overhead == 512 * (49 - 16)


def test_a_stride_sums_the_whole_window() -> None:
    strided = ConvGeometry(1, 256, 512, (14, 14), (7, 7), (3, 3), (2, 2), (1, 1), (1, 1), 1)
    assert filtered_flops(strided, 2).forward_overhead == 256 * (14 * 14 - 16)
    assert kept_bytes(strided) == 256 * 14 * 14 * 4
    assert kept_bytes(strided, 2) == 256 * 16 * 4


def test_bytes_kept_by_the_last_layer_of_a_resnet() -> None:
    assert kept_bytes(RESNET_LAST) == 98 * 1024
    assert kept_bytes(RESNET_LAST, 2) == 32 * 1024
    assert kept_bytes(replace(RESNET_LAST, batch=8), 7) == 8 * 512 * 4
