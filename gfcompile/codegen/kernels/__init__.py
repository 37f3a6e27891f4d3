"""TE definitions of the kernels TVM lacks or does slowly: float32, NHWC, used through `BlockBuilder.emit_te`."""

from gfcompile.codegen.kernels.channel_mix import channel_mix, channel_mix_weight
from gfcompile.codegen.kernels.channels import put_weights, spread_weights, take_channels, take_weights
from gfcompile.codegen.kernels.conv import conv2d
from gfcompile.codegen.kernels.conv_backward import conv2d_input_grad, conv2d_weight_grad
from gfcompile.codegen.kernels.depthwise import (
    depthwise_conv2d,
    depthwise_conv2d_input_grad,
    depthwise_conv2d_weight_grad,
)
from gfcompile.codegen.kernels.matmul import matmul
from gfcompile.codegen.kernels.move import move
from gfcompile.codegen.kernels.patch import patch_broadcast, patch_mean, patch_sum
from gfcompile.codegen.kernels.pool import (
    adaptive_avg_pool2d,
    adaptive_avg_pool2d_backward,
    avg_pool2d,
    avg_pool2d_backward,
    max_pool2d,
    max_pool2d_backward,
    max_pool2d_with_indices,
    pool_positions,
)
from gfcompile.codegen.kernels.put import put
from gfcompile.codegen.kernels.random import uniform
from gfcompile.codegen.kernels.resample import axis_map
from gfcompile.codegen.kernels.statistics import (
    mask_count,
    pack_mask,
    packed_mask_count,
    regrid,
    scale_by_area,
    unpack_mask,
)
from gfcompile.codegen.kernels.winograd import winograd_conv2d

__all__ = [
    "adaptive_avg_pool2d",
    "adaptive_avg_pool2d_backward",
    "avg_pool2d",
    "avg_pool2d_backward",
    "axis_map",
    "channel_mix",
    "channel_mix_weight",
    "conv2d",
    "conv2d_input_grad",
    "conv2d_weight_grad",
    "depthwise_conv2d",
    "depthwise_conv2d_input_grad",
    "depthwise_conv2d_weight_grad",
    "mask_count",
    "matmul",
    "max_pool2d",
    "max_pool2d_backward",
    "max_pool2d_with_indices",
    "move",
    "pack_mask",
    "packed_mask_count",
    "patch_broadcast",
    "patch_mean",
    "patch_sum",
    "pool_positions",
    "put",
    "put_weights",
    "regrid",
    "scale_by_area",
    "spread_weights",
    "take_channels",
    "take_weights",
    "uniform",
    "unpack_mask",
    "winograd_conv2d",
]
