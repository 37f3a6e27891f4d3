"""Translations into Relax: the gf operators, and ATen operators whose own translation by TVM would be slow."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from tvm import relax, te, tirx

from gfcompile.codegen import kernels
from gfcompile.codegen.kernels import update
from gfcompile.errors import ContractError
from gfcompile.geometry.axis_maps import taps
from gfcompile.geometry.layouts import block_size
from gfcompile.graph.shapes import shape_of

Importer = Any
OPAQUE = 8  # TVM's OpPatternKind
Converter = Callable[[fx.Node, Importer], relax.Var]


def _pair(values: Any) -> tuple[int, int]:
    return int(values[0]), int(values[1])


def _is_depthwise(shape: list[int], groups: int) -> bool:
    return groups > 1 and shape[1] == 1 and shape[0] == groups


def _emit(importer: Importer, kernel: Callable[..., Any], *args: Any, name: str | None = None) -> relax.Var:
    return importer.block_builder.emit_te(kernel, *args, primfunc_name_hint=name or kernel.__name__)


def _in_place(kernel: Callable[..., Any]) -> Converter:
    """Opaque to fusion: the driver lets these kernels write over their inputs, so nothing may be fused into them."""
    attributes = {"op_pattern": OPAQUE}

    def convert(node: fx.Node, to: Importer) -> relax.Var:
        operands, named = fx.map_arg(node.args, to.env.__getitem__), node.kwargs
        hint = kernel.__name__
        return to.block_builder.emit_te(kernel, *operands, primfunc_name_hint=hint, primfunc_attrs=attributes, **named)

    return convert


def _plain(kernel: Callable[..., Any]) -> Converter:
    """A kernel that takes what its operator takes."""
    return lambda node, to: _emit(to, kernel, *fx.map_arg(node.args, to.env.__getitem__))


def _conv2d(node: fx.Node, to: Importer) -> relax.Var:
    x, w, shape, stride, padding, dilation, groups = node.args
    geometry = (_pair(stride), _pair(padding), _pair(dilation))
    if _is_depthwise(shape, groups):
        return _emit(to, kernels.depthwise_conv2d, to.env[x], to.env[w], *geometry)
    return _emit(to, kernels.conv2d, to.env[x], to.env[w], *geometry, groups)


def _winograd_conv2d(node: fx.Node, to: Importer) -> relax.Var:
    x, u, padding, edge = node.args
    return _emit(to, kernels.winograd_conv2d, to.env[x], to.env[u], _pair(padding), edge)


def _conv2d_input_grad(node: fx.Node, to: Importer) -> relax.Var:
    gy, w, shape, size, stride, padding, dilation, groups = node.args
    geometry = (_pair(size), _pair(stride), _pair(padding), _pair(dilation))
    if _is_depthwise(shape, groups):
        return _emit(to, kernels.depthwise_conv2d_input_grad, to.env[gy], to.env[w], *geometry)
    return _emit(to, kernels.conv2d_input_grad, to.env[gy], to.env[w], *geometry, groups)


def _conv2d_weight_grad(node: fx.Node, to: Importer) -> relax.Var:
    gy, x, shape, stride, padding, dilation, groups = node.args
    geometry = (_pair(shape[2:]), _pair(stride), _pair(padding), _pair(dilation))
    if _is_depthwise(shape, groups):
        return _emit(to, kernels.depthwise_conv2d_weight_grad, to.env[gy], to.env[x], *geometry)
    block = block_size(shape[0], groups)
    return _emit(to, kernels.conv2d_weight_grad, to.env[gy], to.env[x], *geometry, groups, block)


def _channel_mix(node: fx.Node, to: Importer) -> relax.Var:
    g, w, shape, groups, taps = node.args
    return _emit(to, kernels.channel_mix, to.env[g], to.env[w], groups, _pair(taps), _is_depthwise(shape, groups))


def _channel_mix_weight(node: fx.Node, to: Importer) -> relax.Var:
    g, x_tilde, shape, groups = node.args
    block = block_size(shape[0], groups)
    is_depthwise = _is_depthwise(shape, groups)
    return _emit(
        to, kernels.channel_mix_weight, to.env[g], to.env[x_tilde], groups, _pair(shape[2:]), block, is_depthwise
    )


def _windows(values: Any) -> tuple[int, ...]:
    return tuple(int(value) for value in values)


def _patch_sum(node: fx.Node, to: Importer) -> relax.Var:
    return _emit(to, kernels.patch_sum, to.env[node.args[0]], _windows(node.args[1]), _windows(node.args[2]))


def _patch_mean(node: fx.Node, to: Importer) -> relax.Var:
    return _emit(to, kernels.patch_mean, to.env[node.args[0]], _windows(node.args[1]), _windows(node.args[2]))


def _patch_broadcast(node: fx.Node, to: Importer) -> relax.Var:
    q, rows, cols, size, *_ = node.args
    return _emit(to, kernels.patch_broadcast, to.env[q], _windows(rows), _windows(cols), _pair(size))


def _dtype(node: fx.Node) -> str:
    return str(node.meta["val"].dtype).removeprefix("torch.")


def _mask_count(node: fx.Node, to: Importer) -> relax.Var:
    masks, wanted, rows, cols = node.args
    operands = ([to.env[mask] for mask in masks], list(wanted), _windows(rows), _windows(cols))
    return _emit(to, kernels.mask_count, *operands, _dtype(node))


def _packed_mask_count(node: fx.Node, to: Importer) -> relax.Var:
    bits, wanted, shape, rows, cols = node.args
    operands = ([to.env[packed] for packed in bits], list(wanted), tuple(shape), _windows(rows), _windows(cols))
    return _emit(to, kernels.packed_mask_count, *operands, _dtype(node))


def _pack_mask(node: fx.Node, to: Importer) -> relax.Var:
    return _emit(to, kernels.pack_mask, to.env[node.args[0]])


def _unpack_mask(node: fx.Node, to: Importer) -> relax.Var:
    return _emit(to, kernels.unpack_mask, to.env[node.args[0]], tuple(node.args[1]))


def _scale_by_area(node: fx.Node, to: Importer) -> relax.Var:
    q, rows, cols, inverse = node.args
    return _emit(to, kernels.scale_by_area, to.env[q], _windows(rows), _windows(cols), inverse)


def _regrid(node: fx.Node, to: Importer) -> relax.Var:
    return _emit(to, kernels.regrid, to.env[node.args[0]], *(_windows(axis) for axis in node.args[1:5]))


def _max_pool2d(node: fx.Node, to: Importer) -> relax.Var:
    x, kernel, stride, padding, dilation, _ = node.args
    size = _pair(node.meta["val"][0].shape[1:3])
    geometry = (_pair(kernel), _pair(stride), _pair(padding), _pair(dilation))
    dtype = str(node.meta["val"][1].dtype).removeprefix("torch.")
    return _emit(to, kernels.max_pool2d_with_indices, to.env[x], *geometry, size, dtype)


def _pool_positions(node: fx.Node, to: Importer) -> relax.Var:
    taps_of, width, *geometry = node.args
    return _emit(to, kernels.pool_positions, to.env[taps_of], width, *(_pair(values) for values in geometry))


def _max_pool2d_values(node: fx.Node, to: Importer) -> relax.Var:
    x, kernel, stride, padding, dilation, _ = node.args
    geometry = (_pair(kernel), _pair(stride), _pair(padding), _pair(dilation))
    return _emit(to, kernels.max_pool2d, to.env[x], *geometry, _pair(shape_of(node)[1:3]))


def _max_pool2d_backward(node: fx.Node, to: Importer) -> relax.Var:
    gy, taps, size, kernel, stride, padding, dilation = node.args
    geometry = (_pair(size), _pair(kernel), _pair(stride), _pair(padding), _pair(dilation))
    return _emit(to, kernels.max_pool2d_backward, to.env[gy], to.env[taps], *geometry)


def _avg_pool2d(node: fx.Node, to: Importer) -> relax.Var:
    x, kernel, stride, padding, _, count_pad, divisor = node.args
    size = _pair(shape_of(node)[1:3])
    geometry = (_pair(kernel), _pair(stride), _pair(padding), size)
    return _emit(to, kernels.avg_pool2d, to.env[x], *geometry, count_pad, divisor or None)


def _avg_pool2d_backward(node: fx.Node, to: Importer) -> relax.Var:
    gy, size, kernel, stride, padding, _, count_pad, divisor = node.args
    geometry = (_pair(size), _pair(kernel), _pair(stride), _pair(padding))
    return _emit(to, kernels.avg_pool2d_backward, to.env[gy], *geometry, count_pad, divisor or None)


def _adaptive_avg_pool2d(node: fx.Node, to: Importer) -> relax.Var:
    return _emit(to, kernels.adaptive_avg_pool2d, to.env[node.args[0]], _pair(node.args[1]))


def _adaptive_avg_pool2d_backward(node: fx.Node, to: Importer) -> relax.Var:
    return _emit(to, kernels.adaptive_avg_pool2d_backward, to.env[node.args[0]], _pair(node.args[1]))


def _axis_map(node: fx.Node, to: Importer) -> relax.Var:
    x, axis, size, kind, settings, transposed = node.args
    length = shape_of(x)[axis]
    small, large = (size, length) if transposed else (length, size)
    found = taps(kind, tuple(settings), small, large, transposed)
    is_copy = found.weight.shape[1] == 1 and bool((found.weight == 1).all())
    tables = (relax.const(found.index), relax.const(found.weight))
    return _emit(to, kernels.axis_map, to.env[x], *tables, axis, is_copy)


def _uniform(node: fx.Node, to: Importer) -> relax.Var:
    seed, stream, shape = node.args
    return _emit(to, kernels.uniform, to.env[seed], stream, tuple(shape))


def _move(node: fx.Node, to: Importer) -> relax.Var:
    sources, table, shape = node.args
    return _emit(to, kernels.move, [to.env[source] for source in sources], to.env[table], tuple(shape))


def _maximum_over(node: fx.Node, to: Importer) -> relax.Var:
    x, *rest = node.args
    axes = list(rest[0]) if rest and rest[0] else None
    keep = bool(rest[1]) if len(rest) > 1 else False
    reduce = relax.op.max if "amax" in node.target.__name__ else relax.op.min
    return to.block_builder.emit(reduce(to.env[x], axes, keep))


def _full(node: fx.Node, to: Importer) -> relax.Var:
    """Infinities as spread constants: TVM's own fill fails on them."""
    value = node.args[1]
    if isinstance(value, fx.Node) or math.isfinite(value):
        return to._full(node) if node.target.__name__ == "full.default" else to._full_like(node)
    return to.block_builder.emit(relax.op.broadcast_to(relax.const(value, _dtype(node)), shape_of(node)))


def _multiply(node: fx.Node, to: Importer) -> relax.Var:
    """A product of masks is where both hold."""
    if _dtype(node) != "bool":
        return to._binary_op(relax.op.multiply, operator.mul)(node)
    x, y = (to.env[arg] for arg in node.args)
    return to.block_builder.emit(relax.op.logical_and(x, y))


def _where(node: fx.Node, to: Importer) -> relax.Var:
    """Both sides in the result's type."""
    condition, *sides = (to.env[arg] for arg in node.args)
    x, y = (relax.op.astype(side, _dtype(node)) if side.ty.dtype != _dtype(node) else side for side in sides)
    return to.block_builder.emit(relax.op.where(condition, x, y))


def _product_over(node: fx.Node, to: Importer) -> relax.Var:
    x, axis, *keep = node.args
    return to.block_builder.emit(relax.op.prod(to.env[x], [axis], bool(keep and keep[0])))


def _rounded_division(node: fx.Node, to: Importer) -> relax.Var:
    """Numbers take the result's type: TVM's own makes an int32 of them whatever they divide."""
    dtype = _dtype(node)
    x, y = (
        relax.op.astype(to.env[arg], dtype) if isinstance(arg, fx.Node) else relax.const(arg, dtype)
        for arg in node.args[:2]
    )
    mode = node.kwargs.get("rounding_mode")
    if mode == "floor":
        return to.block_builder.emit(relax.op.floor_divide(x, y))
    quotient = relax.op.divide(x, y)
    return to.block_builder.emit(relax.op.trunc(quotient) if mode == "trunc" and "float" in dtype else quotient)


def _scatter_value(node: fx.Node, to: Importer) -> relax.Var:
    """scatter(base, axis, index, value) as a comparison: TVM's own is one serial loop, and the loss needs no more."""
    base, axis, index, value = node.args
    axis = int(axis) % len(shape_of(base))

    def scatter(data: te.Tensor, where: te.Tensor) -> te.Tensor:
        def element(*at: tirx.Var) -> tirx.PrimExpr:
            hit = where[(*at[:axis], 0, *at[axis + 1 :])] == at[axis].astype(where.dtype)
            return tirx.if_then_else(hit, tirx.const(value, data.dtype), data[at])

        return te.compute(data.shape, element, name="scatter")

    if shape_of(index)[axis] != 1:
        return to._scatter_value(node)
    return _emit(to, scatter, to.env[base], to.env[index], name="scatter")


def _transposed(node: fx.Node) -> tuple[fx.Node, bool]:
    """What a matrix is a transposition of, and whether an odd number of them lies between."""
    turned = False
    while node.target is torch.ops.aten.permute.default and list(node.args[1]) == [1, 0]:
        node, turned = node.args[0], not turned
    return node, turned


def _mm(node: fx.Node, to: Importer) -> relax.Var:
    (a, a_turned), (b, b_turned) = map(_transposed, node.args[-2:])
    return _emit(to, kernels.matmul, to.env[a], to.env[b], a_turned, b_turned)


def _addmm(node: fx.Node, to: Importer) -> relax.Var:
    if node.kwargs:  # factors: rare, and TVM knows them
        return to._addmm(node)
    return to.block_builder.emit(relax.op.add(_mm(node, to), to.env[node.args[0]]))


def _permute(node: fx.Node, to: Importer) -> relax.Var:
    base, turned = _transposed(node)
    return to.env[base] if base is not node and not turned else to._permute(node)


def _select(node: fx.Node, to: Importer) -> relax.Var:
    """x[..., index, ...] at an index that is known: TVM's own is a gather, with a warning."""
    x, axis, index = node.args
    axis, index = axis % len(shape_of(x)), index % shape_of(x)[axis]

    def select(data: te.Tensor) -> te.Tensor:
        shape = (*data.shape[:axis], *data.shape[axis + 1 :])
        return te.compute(shape, lambda *at: data[(*at[:axis], index, *at[axis:])], name="select")

    return _emit(to, select, to.env[x])


def _index_select(node: fx.Node, to: Importer) -> relax.Var:
    x, axis, index = node.args
    return to.block_builder.emit(relax.op.take(to.env[x], to.env[index], axis % len(shape_of(x)), mode="clip"))


def _embedding(node: fx.Node, to: Importer) -> relax.Var:
    weight, index = node.args[:2]
    return to.block_builder.emit(relax.op.take(to.env[weight], to.env[index], 0, mode="clip"))


def _put(node: fx.Node, to: Importer) -> relax.Var:
    base, index, values, accumulate = node.args
    (rows, size), (_, count) = shape_of(base), shape_of(index)
    kernel = to.block_builder.add_func(kernels.put(rows, size, count, _dtype(base), accumulate), "put")
    result = relax.TensorType((rows, size), _dtype(base))
    operands = [to.env[base], to.env[index], to.env[values]]
    return to.block_builder.emit(relax.call_tir(kernel, operands, out_ty=result))


def _gather(node: fx.Node, to: Importer) -> relax.Var:
    """gather along an axis where the index has one entry, as the loss uses it."""
    data, axis, index = node.args[:3]
    axis = int(axis) % len(shape_of(data))

    def gather(values: te.Tensor, where: te.Tensor) -> te.Tensor:
        def element(*at: tirx.Var) -> tirx.PrimExpr:
            return values[(*at[:axis], where[at].astype("int32"), *at[axis + 1 :])]

        return te.compute(where.shape, element, name="gather")

    return _emit(to, gather, to.env[data], to.env[index], name="gather")


def _take_channels(node: fx.Node, to: Importer) -> relax.Var:
    x, channels, inputs, outputs = node.args
    return _emit(to, kernels.take_channels, to.env[x], to.env[channels], inputs, outputs)


def _take_weights(node: fx.Node, to: Importer) -> relax.Var:
    w, channels, shape, groups = node.args
    return _emit(to, kernels.take_weights, to.env[w], to.env[channels], tuple(shape), groups)


def _spread_weights(node: fx.Node, to: Importer) -> relax.Var:
    values, channels, shape, groups = node.args
    return _emit(to, kernels.spread_weights, to.env[values], to.env[channels], tuple(shape), groups)


def _put_weights(node: fx.Node, to: Importer) -> relax.Var:
    """Writes nothing but the drawn weights, so it must run in place: the driver lets it."""
    w, values, channels, shape, groups = node.args
    if w.op != "placeholder":
        raise ContractError(f"'{w.name}' is no state that '{node.name}' could be written into")
    kernel = kernels.put_weights(tuple(shape), groups, shape_of(channels)[0])
    made = to.block_builder.add_func(kernel, kernels.put_weights.__name__)
    result = relax.TensorType(shape_of(node), _dtype(node))
    return to.block_builder.emit(relax.call_tir(made, [to.env[w], to.env[values], to.env[channels]], out_ty=result))


CONVERTERS: dict[str, Converter] = {
    "winograd_conv2d_nhwc.default": _winograd_conv2d,
    "conv2d_nhwc.default": _conv2d,
    "conv2d_input_grad_nhwc.default": _conv2d_input_grad,
    "conv2d_weight_grad_nhwc.default": _conv2d_weight_grad,
    "channel_mix_nhwc.default": _channel_mix,
    "channel_mix_weight_nhwc.default": _channel_mix_weight,
    "patch_sum.default": _patch_sum,
    "patch_mean.default": _patch_mean,
    "patch_broadcast.default": _patch_broadcast,
    "mask_count.default": _mask_count,
    "packed_mask_count.default": _packed_mask_count,
    "pack_mask.default": _pack_mask,
    "unpack_mask.default": _unpack_mask,
    "scale_by_area.default": _scale_by_area,
    "regrid.default": _regrid,
    "mm.default": _mm,
    "addmm.default": _addmm,
    "permute.default": _permute,
    "select.int": _select,
    "index_select.default": _index_select,
    "embedding.default": _embedding,
    "put.default": _put,
    "amax.default": _maximum_over,
    "amin.default": _maximum_over,
    "full.default": _full,
    "full_like.default": _full,
    "mul.Tensor": _multiply,
    "where.self": _where,
    "prod.dim_int": _product_over,
    "div.Tensor_mode": _rounded_division,
    "div.Scalar_mode": _rounded_division,
    "axis_map.default": _axis_map,
    "uniform.default": _uniform,
    "move.default": _move,
    "max_pool2d_nhwc.default": _max_pool2d,
    "pool_positions_nhwc.default": _pool_positions,
    "max_pool2d_values_nhwc.default": _max_pool2d_values,
    "max_pool2d_backward_nhwc.default": _max_pool2d_backward,
    "avg_pool2d_nhwc.default": _avg_pool2d,
    "avg_pool2d_backward_nhwc.default": _avg_pool2d_backward,
    "adaptive_avg_pool2d_nhwc.default": _adaptive_avg_pool2d,
    "adaptive_avg_pool2d_backward_nhwc.default": _adaptive_avg_pool2d_backward,
    "sgd_update.default": _in_place(update.sgd_update),
    "sgd_update_plain.default": _in_place(update.sgd_update_plain),
    "adam_update.default": _in_place(update.adam_update),
    "rmsprop_update.default": _in_place(update.rmsprop_update),
    "sgd_gain.default": _plain(update.sgd_gain),
    "bias_correction.default": _plain(update.bias_correction),
    "square_sum.default": _plain(update.square_sum),
    "clip_coefficient.default": _plain(update.clip_coefficient),
    "take_channels.default": _take_channels,
    "take_weights.default": _take_weights,
    "put_weights.default": _put_weights,
    "spread_weights.default": _spread_weights,
    "scatter.value": _scatter_value,
    "gather.default": _gather,
}
