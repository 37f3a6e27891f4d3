"""One operator, one row: where each gf operator is computed, laid out, lowered, written and counted.

An entry is `module:function` below the package, or says why there is none. The rows are text, since most of what they
name lies in rooms above this one; `tests/ops/test_table.py` compares them with the registries, both ways.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Absent:
    """No entry, because of `reason`."""

    reason: str

    def __str__(self) -> str:
        return f"none, because {self.reason}"


@dataclass(frozen=True)
class Row:
    """`home` has the eager function, under the operator's name, and its fake.

    `layout` rewrites it with channels last, `lowering` into Relax, where it calls one of `kernels`; `gradient_rule` is
    its action on linear forms, `onnx` its body for others; `multiply_adds` counts it, and `samples` decides whether it
    keeps the samples of a batch apart.
    """

    operator: str
    home: str
    layout: str | Absent
    lowering: str | Absent
    kernels: tuple[str, ...] | Absent
    gradient_rule: str | Absent
    onnx: str | Absent
    multiply_adds: str | Absent
    samples: str | Absent

    @property
    def eager(self) -> str:
        """The custom operator that runs in plain PyTorch."""
        return f"{self.home}:{self.operator}"

    @property
    def fake(self) -> str:
        """Its shapes alone; registered beside it, and without a name of its own."""
        return f"{self.home}:{self.operator}.register_fake"


EXPANDED = Absent("`filter` expands it before any other pass reads it")
# the layout
LAYOUT_WRITES = Absent("the layout pass writes it")
AFTER_LAYOUT = Absent("it is written after the layout pass")
TRACED_ORDER = Absent("it numbers elements in PyTorch's order, so its operands go back to that")
SCALARS = Absent("it works on scalars, which have no layout")
# code
REPLACED = Absent("the layout pass puts its `_nhwc` form in its place")
FOLDED = Absent("its weights are frozen: `fold_frozen` computes it at compile time")
# the gradient calculus
AFTER_SINK = Absent("it is written after `sink`")
SINK_WRITES = Absent("`sink` writes it")
SINKS = Absent("`sink` evaluates the form that it reads")
PATCH_VALUES = Absent("it works on patch values, which are no map")
WEIGHTS = Absent("weights and their gradients are no map")
PIXELS = Absent("it reads a gradient pixel by pixel: no form passes through it")
NO_GRADIENT = Absent("it reads no gradient")
# counting
NO_PRODUCTS = Absent("it multiplies no matrices")
# the frozen prefix
BACKWARD = Absent("it works for the backward pass or the update, which no prefix reaches")
DRAWN = Absent("it reads the drawn channels, which every step draws anew")
RANDOM = Absent("its numbers are new in every step: no prefix has them")
ENDS = Absent("nobody has shown that it keeps samples apart, so a prefix ends before it")

# A row is read across: its columns have the same place in each.
# fmt: off
TABLE: tuple[Row, ...] = (
    Row("take_channels", "ops.channels",
        layout="passes.image_ops:_take_channels",
        lowering="codegen.converters.channels:_take_channels", kernels=("codegen.kernels.channels:take_channels",),
        gradient_rule=PIXELS, onnx="export.gf.channels:_take_channels",
        multiply_adds=NO_PRODUCTS, samples=DRAWN),
    Row("take_weights", "ops.channels",
        layout="passes.image_ops:_drawn_weights",
        lowering="codegen.converters.channels:_take_weights", kernels=("codegen.kernels.channels:take_weights",),
        gradient_rule=WEIGHTS, onnx="export.gf.channels:_take_weights",
        multiply_adds=NO_PRODUCTS, samples=DRAWN),
    Row("put_weights", "ops.channels",
        layout="passes.image_ops:_drawn_weights",
        lowering="codegen.converters.channels:_put_weights", kernels=("codegen.kernels.channels:put_weights",),
        gradient_rule=AFTER_SINK, onnx="export.gf.channels:_put_weights",
        multiply_adds=NO_PRODUCTS, samples=DRAWN),
    Row("spread_weights", "ops.channels",
        layout="passes.image_ops:_drawn_weights",
        lowering="codegen.converters.channels:_spread_weights", kernels=("codegen.kernels.channels:spread_weights",),
        gradient_rule=WEIGHTS, onnx="export.gf.channels:_spread_weights",
        multiply_adds=NO_PRODUCTS, samples=DRAWN),
    Row("conv2d_nhwc", "ops.convolution",
        layout=LAYOUT_WRITES,
        lowering="codegen.converters.convolution:_conv2d",
        kernels=("codegen.kernels.depthwise:depthwise_conv2d", "codegen.kernels.conv:conv2d"),
        gradient_rule=AFTER_SINK, onnx="export.gf.convolution:_conv2d",
        multiply_adds="graph.multiply_adds:_of_result", samples="graph.sample_independence:_sample_by_sample"),
    Row("conv2d_input_grad_nhwc", "ops.convolution",
        layout=LAYOUT_WRITES,
        lowering="codegen.converters.convolution:_conv2d_input_grad",
        kernels=("codegen.kernels.depthwise:depthwise_conv2d_input_grad",
                 "codegen.kernels.conv_backward:conv2d_input_grad"),
        gradient_rule=AFTER_SINK, onnx="export.gf.convolution:_input_grad",
        multiply_adds="graph.multiply_adds:_of_gradient", samples=ENDS),
    Row("conv2d_weight_grad_nhwc", "ops.convolution",
        layout=LAYOUT_WRITES,
        lowering="codegen.converters.convolution:_conv2d_weight_grad",
        kernels=("codegen.kernels.depthwise:depthwise_conv2d_weight_grad",
                 "codegen.kernels.conv_backward:conv2d_weight_grad"),
        gradient_rule=AFTER_SINK, onnx="export.gf.convolution:_weight_grad",
        multiply_adds="graph.multiply_adds:_of_gradient", samples=BACKWARD),
    Row("channel_mix", "ops.mixing",
        layout="passes.image_ops:_channel_mix",
        lowering=REPLACED, kernels=REPLACED,
        gradient_rule=PATCH_VALUES, onnx="export.gf.mixing:_channel_mix",
        multiply_adds=REPLACED, samples=REPLACED),
    Row("channel_mix_weight", "ops.mixing",
        layout="passes.image_ops:_channel_mix_weight",
        lowering=REPLACED, kernels=REPLACED,
        gradient_rule=PATCH_VALUES, onnx="export.gf.mixing:_channel_mix_weight",
        multiply_adds=REPLACED, samples=REPLACED),
    Row("channel_mix_nhwc", "ops.mixing",
        layout=LAYOUT_WRITES,
        lowering="codegen.converters.convolution:_channel_mix", kernels=("codegen.kernels.channel_mix:channel_mix",),
        gradient_rule=AFTER_SINK, onnx="export.gf.mixing:_channel_mix_nhwc",
        multiply_adds="graph.multiply_adds:_channel_mix", samples=BACKWARD),
    Row("channel_mix_weight_nhwc", "ops.mixing",
        layout=LAYOUT_WRITES,
        lowering="codegen.converters.convolution:_channel_mix_weight",
        kernels=("codegen.kernels.channel_mix:channel_mix_weight",),
        gradient_rule=AFTER_SINK, onnx="export.gf.mixing:_channel_mix_weight_nhwc",
        multiply_adds="graph.multiply_adds:_of_gradient", samples=BACKWARD),
    Row("patch_sum", "ops.patches",
        layout="passes.image_ops:_patch",
        lowering="codegen.converters.patches:_patch_sum", kernels=("codegen.kernels.patch:patch_sum",),
        gradient_rule=NO_GRADIENT, onnx="export.gf.patches:_patch_sum",
        multiply_adds=NO_PRODUCTS, samples="graph.sample_independence:_sample_by_sample"),
    Row("patch_mean", "ops.patches",
        layout="passes.image_ops:_patch",
        lowering="codegen.converters.patches:_patch_mean", kernels=("codegen.kernels.patch:patch_mean",),
        gradient_rule=SINKS, onnx="export.gf.patches:_patch_mean",
        multiply_adds=NO_PRODUCTS, samples="graph.sample_independence:_sample_by_sample"),
    Row("patch_broadcast", "ops.patches",
        layout="passes.image_ops:_patch",
        lowering="codegen.converters.patches:_patch_broadcast", kernels=("codegen.kernels.patch:patch_broadcast",),
        gradient_rule="passes.gradient_rules:_broadcast", onnx="export.gf.patches:_patch_broadcast",
        multiply_adds=NO_PRODUCTS, samples=BACKWARD),
    Row("filtered_convolution_backward", "ops.filtered",
        layout=EXPANDED,
        lowering=EXPANDED, kernels=EXPANDED,
        gradient_rule=EXPANDED, onnx="export.gf.mixing:_filtered_convolution_backward",
        multiply_adds=EXPANDED, samples=EXPANDED),
    Row("move", "ops.moves",
        layout=TRACED_ORDER,
        lowering="codegen.converters.moves:_move", kernels=("codegen.kernels.move:move",),
        gradient_rule=PIXELS, onnx="export.gf.moves:_move",
        multiply_adds=NO_PRODUCTS, samples="graph.sample_independence:_move"),
    Row("put", "ops.moves",
        layout=TRACED_ORDER,
        lowering="codegen.converters.moves:_put", kernels=("codegen.kernels.put:put",),
        gradient_rule=PIXELS, onnx="export.gf.moves:_put",
        multiply_adds=NO_PRODUCTS, samples=ENDS),
    Row("mask_count", "ops.statistics",
        layout="passes.image_ops:_mask_count",
        lowering="codegen.converters.patches:_mask_count", kernels=("codegen.kernels.statistics:mask_count",),
        gradient_rule=SINK_WRITES, onnx="export.gf.statistics:_mask_count",
        multiply_adds=NO_PRODUCTS, samples=BACKWARD),
    Row("scale_by_area", "ops.statistics",
        layout="passes.image_ops:_patch",
        lowering="codegen.converters.patches:_scale_by_area", kernels=("codegen.kernels.statistics:scale_by_area",),
        gradient_rule=SINK_WRITES, onnx="export.gf.patches:_scale_by_area",
        multiply_adds=NO_PRODUCTS, samples=BACKWARD),
    Row("regrid", "ops.statistics",
        layout="passes.image_ops:_patch",
        lowering="codegen.converters.patches:_regrid", kernels=("codegen.kernels.statistics:regrid",),
        gradient_rule=SINK_WRITES, onnx="export.gf.patches:_regrid",
        multiply_adds=NO_PRODUCTS, samples=BACKWARD),
    Row("pack_mask", "ops.statistics",
        layout="passes.image_ops:_pack_mask",
        lowering="codegen.converters.patches:_pack_mask", kernels=("codegen.kernels.statistics:pack_mask",),
        gradient_rule=AFTER_SINK, onnx="export.gf.statistics:_pack_mask",
        multiply_adds=NO_PRODUCTS, samples=BACKWARD),
    Row("unpack_mask", "ops.statistics",
        layout="passes.image_ops:_unpack_mask",
        lowering="codegen.converters.patches:_unpack_mask", kernels=("codegen.kernels.statistics:unpack_mask",),
        gradient_rule=AFTER_SINK, onnx="export.gf.statistics:_unpack_mask",
        multiply_adds=NO_PRODUCTS, samples=BACKWARD),
    Row("packed_mask_count", "ops.statistics",
        layout="passes.image_ops:_packed_mask_count",
        lowering="codegen.converters.patches:_packed_mask_count",
        kernels=("codegen.kernels.statistics:packed_mask_count",),
        gradient_rule=AFTER_SINK, onnx="export.gf.statistics:_packed_mask_count",
        multiply_adds=NO_PRODUCTS, samples=BACKWARD),
    Row("max_pool2d_nhwc", "ops.pooling",
        layout=LAYOUT_WRITES,
        lowering="codegen.converters.pooling:_max_pool2d", kernels=("codegen.kernels.pool:max_pool2d_with_indices",),
        gradient_rule=AFTER_SINK, onnx="export.gf.pooling:_max_pool",
        multiply_adds=NO_PRODUCTS, samples="graph.sample_independence:_sample_by_sample"),
    Row("pool_positions_nhwc", "ops.pooling",
        layout=LAYOUT_WRITES,
        lowering="codegen.converters.pooling:_pool_positions", kernels=("codegen.kernels.pool:pool_positions",),
        gradient_rule=AFTER_SINK, onnx="export.gf.pooling:_pool_positions",
        multiply_adds=NO_PRODUCTS, samples="graph.sample_independence:_sample_by_sample"),
    Row("max_pool2d_values_nhwc", "ops.pooling",
        layout=LAYOUT_WRITES,
        lowering="codegen.converters.pooling:_max_pool2d_values", kernels=("codegen.kernels.pool:max_pool2d",),
        gradient_rule=AFTER_SINK, onnx="export.gf.pooling:_max_pool_values",
        multiply_adds=NO_PRODUCTS, samples="graph.sample_independence:_sample_by_sample"),
    Row("max_pool2d_backward_nhwc", "ops.pooling",
        layout=LAYOUT_WRITES,
        lowering="codegen.converters.pooling:_max_pool2d_backward",
        kernels=("codegen.kernels.pool:max_pool2d_backward",),
        gradient_rule=AFTER_SINK, onnx="export.gf.pooling:_max_pool_backward",
        multiply_adds=NO_PRODUCTS, samples=BACKWARD),
    Row("avg_pool2d_nhwc", "ops.pooling",
        layout=LAYOUT_WRITES,
        lowering="codegen.converters.pooling:_avg_pool2d", kernels=("codegen.kernels.pool:avg_pool2d",),
        gradient_rule=AFTER_SINK, onnx="export.gf.pooling:_avg_pool",
        multiply_adds=NO_PRODUCTS, samples="graph.sample_independence:_sample_by_sample"),
    Row("avg_pool2d_backward_nhwc", "ops.pooling",
        layout=LAYOUT_WRITES,
        lowering="codegen.converters.pooling:_avg_pool2d_backward",
        kernels=("codegen.kernels.pool:avg_pool2d_backward",),
        gradient_rule=AFTER_SINK, onnx="export.gf.pooling:_avg_pool_backward",
        multiply_adds=NO_PRODUCTS, samples=BACKWARD),
    Row("adaptive_avg_pool2d_nhwc", "ops.pooling",
        layout=LAYOUT_WRITES,
        lowering="codegen.converters.pooling:_adaptive_avg_pool2d",
        kernels=("codegen.kernels.pool:adaptive_avg_pool2d",),
        gradient_rule=AFTER_SINK, onnx="export.gf.pooling:_adaptive_avg_pool",
        multiply_adds=NO_PRODUCTS, samples="graph.sample_independence:_sample_by_sample"),
    Row("adaptive_avg_pool2d_backward_nhwc", "ops.pooling",
        layout=LAYOUT_WRITES,
        lowering="codegen.converters.pooling:_adaptive_avg_pool2d_backward",
        kernels=("codegen.kernels.pool:adaptive_avg_pool2d_backward",),
        gradient_rule=AFTER_SINK, onnx="export.gf.pooling:_adaptive_avg_pool_backward",
        multiply_adds=NO_PRODUCTS, samples=BACKWARD),
    Row("uniform", "ops.random",
        layout=TRACED_ORDER,
        lowering="codegen.converters.moves:_uniform", kernels=("codegen.kernels.random:uniform",),
        gradient_rule=NO_GRADIENT, onnx="export.gf.moves:_uniform",
        multiply_adds=NO_PRODUCTS, samples=RANDOM),
    Row("axis_map", "ops.resample",
        layout="passes.image_ops:_axis_map",
        lowering="codegen.converters.moves:_axis_map", kernels=("codegen.kernels.resample:axis_map",),
        gradient_rule=PIXELS, onnx="export.gf.moves:_axis_map",
        multiply_adds=NO_PRODUCTS, samples="graph.sample_independence:_along"),
    Row("sgd_update_plain", "ops.update",
        layout="passes.image_ops:_update",
        lowering="codegen.converters.update:_in_place", kernels=("codegen.kernels.update:sgd_update_plain",),
        gradient_rule=AFTER_SINK, onnx="export.gf.update:_sgd_plain",
        multiply_adds=NO_PRODUCTS, samples=BACKWARD),
    Row("sgd_update", "ops.update",
        layout="passes.image_ops:_update",
        lowering="codegen.converters.update:_in_place", kernels=("codegen.kernels.update:sgd_update",),
        gradient_rule=AFTER_SINK, onnx="export.gf.update:_sgd",
        multiply_adds=NO_PRODUCTS, samples=BACKWARD),
    Row("sgd_gain", "ops.update",
        layout=SCALARS,
        lowering="codegen.converters.update:_plain", kernels=("codegen.kernels.update:sgd_gain",),
        gradient_rule=AFTER_SINK, onnx="export.gf.update:_sgd_gain",
        multiply_adds=NO_PRODUCTS, samples=BACKWARD),
    Row("adam_update", "ops.update",
        layout="passes.image_ops:_update",
        lowering="codegen.converters.update:_in_place", kernels=("codegen.kernels.update:adam_update",),
        gradient_rule=AFTER_SINK, onnx="export.gf.update:_adam",
        multiply_adds=NO_PRODUCTS, samples=BACKWARD),
    Row("bias_correction", "ops.update",
        layout=SCALARS,
        lowering="codegen.converters.update:_plain", kernels=("codegen.kernels.update:bias_correction",),
        gradient_rule=AFTER_SINK, onnx="export.gf.update:_bias_correction",
        multiply_adds=NO_PRODUCTS, samples=BACKWARD),
    Row("rmsprop_update", "ops.update",
        layout="passes.image_ops:_update",
        lowering="codegen.converters.update:_in_place", kernels=("codegen.kernels.update:rmsprop_update",),
        gradient_rule=AFTER_SINK, onnx="export.gf.update:_rmsprop",
        multiply_adds=NO_PRODUCTS, samples=BACKWARD),
    Row("square_sum", "ops.update",
        layout="passes.image_ops:_square_sum",
        lowering="codegen.converters.update:_plain", kernels=("codegen.kernels.update:square_sum",),
        gradient_rule=AFTER_SINK, onnx="export.gf.update:_square_sum",
        multiply_adds=NO_PRODUCTS, samples=BACKWARD),
    Row("clip_coefficient", "ops.update",
        layout=SCALARS,
        lowering="codegen.converters.update:_plain", kernels=("codegen.kernels.update:clip_coefficient",),
        gradient_rule=AFTER_SINK, onnx="export.gf.update:_clip_coefficient",
        multiply_adds=NO_PRODUCTS, samples=BACKWARD),
    Row("winograd_weight", "ops.winograd",
        layout=AFTER_LAYOUT,
        lowering=FOLDED, kernels=FOLDED,
        gradient_rule=AFTER_SINK, onnx="export.gf.winograd:_weight",
        multiply_adds=FOLDED, samples=FOLDED),
    Row("winograd_conv2d_nhwc", "ops.winograd",
        layout=AFTER_LAYOUT,
        lowering="codegen.converters.convolution:_winograd_conv2d",
        kernels=("codegen.kernels.winograd:winograd_conv2d",),
        gradient_rule=AFTER_SINK, onnx="export.gf.winograd:_conv2d",
        multiply_adds="graph.multiply_adds:_winograd", samples="graph.sample_independence:_sample_by_sample"),
)
# fmt: on
