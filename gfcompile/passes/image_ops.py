"""What the layout pass knows about operators on images: each entry rewrites one operator, or says no with False."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from gfcompile.geometry.channel_draws import Draw
from gfcompile.geometry.layouts import WeightLayout
from gfcompile.graph.nodes import results_of
from gfcompile.graph.shapes import shape_of
from gfcompile.ops import gf

if TYPE_CHECKING:
    from gfcompile.passes.channels_last import Relayout

aten = torch.ops.aten
LAST_AXIS = {0: 0, 1: 3, 2: 1, 3: 2}  # where a traced axis lies with channels last


def _pair(values: Any, default: int = 0) -> list[int]:
    values = list(values) or [default]
    return [int(values[0]), int(values[-1])]


def _convolution(to: Relayout, node: fx.Node) -> bool:
    """A transposed convolution is the input gradient of the ordinary one with the same weights, and conversely."""
    x, w, bias, stride, padding, dilation, transposed, _, groups = node.args
    if len(shape_of(x)) != 4:
        return False
    shape, geometry = list(shape_of(w)), (_pair(stride), _pair(padding), _pair(dilation), groups)
    weight = to.as_packed(w, WeightLayout.for_conv(shape, groups))
    if transposed:
        y = to.emit(
            gf.conv2d_input_grad_nhwc.default, to.as_image(x), weight, shape, list(shape_of(node)[2:]), *geometry
        )
    else:
        y = to.emit(gf.conv2d_nhwc.default, to.as_image(x), weight, shape, *geometry)
    if bias is not None:
        y = to.emit(aten.add.Tensor, y, to.as_plain(bias))
    to.image[node] = y
    return True


def _convolution_backward(to: Relayout, node: fx.Node) -> bool:
    gy, x, w, _, stride, padding, dilation, transposed, _, groups, _ = node.args
    if len(shape_of(x)) != 4:
        return False
    shape, geometry = list(shape_of(w)), (_pair(stride), _pair(padding), _pair(dilation), groups)
    layout = WeightLayout.for_conv(shape, groups)
    for index, result in results_of(node).items():
        gradient = to.as_image(gy)
        if index == 0 and transposed:
            to.image[result] = to.emit(gf.conv2d_nhwc.default, gradient, to.as_packed(w, layout), shape, *geometry)
        elif index == 0:
            size = list(shape_of(x)[2:])
            operands = (gradient, to.as_packed(w, layout), shape, size)
            to.image[result] = to.emit(gf.conv2d_input_grad_nhwc.default, *operands, *geometry)
        elif index == 1:
            pair = (to.as_image(x), gradient) if transposed else (gradient, to.as_image(x))
            to.packed[result] = (to.emit(gf.conv2d_weight_grad_nhwc.default, *pair, shape, *geometry), layout)
        else:
            to.plain[result] = to.emit(aten.sum.dim_IntList, gradient, [0, 1, 2])
    return True


def _getitem(to: Relayout, node: fx.Node) -> bool:
    """Results that their producer's entry has already written."""
    return node in to.image or node in to.packed or node in to.plain or node in to.taps


def _patch(to: Relayout, node: fx.Node) -> bool:
    value, *windows = node.args
    if node.kwargs.get("channels_last"):
        return False
    to.image[node] = to.emit(node.target, to.as_image(value), *windows, channels_last=True)
    return True


def _mask_count(to: Relayout, node: fx.Node) -> bool:
    masks, *rest = node.args
    images = [to.as_image(mask) for mask in masks]
    to.image[node] = to.emit(gf.mask_count.default, images, *rest, channels_last=True)
    return True


def _pack_mask(to: Relayout, node: fx.Node) -> bool:
    """Masks of images are packed with channels last, and unpacked so."""
    to.plain[node] = to.emit(gf.pack_mask.default, to.as_image(node.args[0]))
    return True


def _unpack_mask(to: Relayout, node: fx.Node) -> bool:
    to.image[node] = to.emit(gf.unpack_mask.default, to.as_plain(node.args[0]), _last(node.args[1]))
    return True


def _packed_mask_count(to: Relayout, node: fx.Node) -> bool:
    bits, wanted, shape, *windows = node.args
    packed = [to.as_plain(part) for part in bits]
    to.image[node] = to.emit(gf.packed_mask_count.default, packed, wanted, _last(shape), *windows, channels_last=True)
    return True


def _last(shape: list[int]) -> list[int]:
    return [shape[0], shape[2], shape[3], shape[1]]


def _channel_mix(to: Relayout, node: fx.Node) -> bool:
    g, w, groups, taps = node.args
    shape = list(shape_of(w))
    weight = to.as_packed(w, WeightLayout.for_conv(shape, groups))
    to.image[node] = to.emit(gf.channel_mix_nhwc.default, to.as_image(g), weight, shape, groups, taps)
    return True


def _channel_mix_weight(to: Relayout, node: fx.Node) -> bool:
    g, x_tilde, groups, _ = node.args
    shape = list(shape_of(node))
    gw = to.emit(gf.channel_mix_weight_nhwc.default, to.as_image(g), to.as_image(x_tilde), shape, groups)
    to.packed[node] = (gw, WeightLayout.for_conv(shape, groups))
    return True


def _reduction(to: Relayout, node: fx.Node) -> bool:
    x, axes, *rest = node.args
    if x not in to.image or len(shape_of(x)) != 4:
        return False
    keep = bool(rest[0]) if rest else False
    reduced = {int(axis) % 4 for axis in axes} if axes else {0, 1, 2, 3}
    left = [axis for axis in (0, 2, 3, 1) if axis not in reduced]
    if not keep and left != sorted(left):
        return False
    result = to.emit(node.target, to.image[x], sorted(LAST_AXIS[axis] for axis in reduced), *rest, **node.kwargs)
    (to.image if keep else to.plain)[node] = result
    return True


def _expand(to: Relayout, node: fx.Node) -> bool:
    x, size = node.args[0], node.args[1]
    if x.target is gf.channel_mix_weight.default:
        layout = WeightLayout.for_conv(list(shape_of(node)), x.args[2])
        to.packed[node] = (to.emit(aten.expand.default, to.packed[x][0], list(layout.physical_shape)), layout)
        return True
    if len(size) != 4 or len(shape_of(x)) != 4 or not (shape_of(x)[2:] == (1, 1) or x in to.image):
        return False
    to.image[node] = to.emit(aten.expand.default, to.as_image(x), _last(list(shape_of(node))))
    return True


def _view(to: Relayout, node: fx.Node) -> bool:
    """[N, C, 1, 1] and [N, C] hold their values in the same order in either layout."""
    x = node.args[0]
    if x not in to.image or x in to.plain or len(shape_of(x)) != 4 or shape_of(x)[2:] != (1, 1):
        return False
    if len(shape_of(node)) == 4:
        return False
    to.plain[node] = to.emit(aten.reshape.default, to.image[x], list(shape_of(node)))
    return True


def _cat(to: Relayout, node: fx.Node) -> bool:
    parts, axis = node.args[0], node.args[1] if len(node.args) > 1 else 0
    if len(shape_of(node)) != 4 or not any(part in to.image for part in parts):
        return False
    to.image[node] = to.emit(node.target, [to.as_image(part) for part in parts], LAST_AXIS[axis % 4])
    return True


def _slice(to: Relayout, node: fx.Node) -> bool:
    x, axis, *rest = node.args
    if x not in to.image or len(shape_of(x)) != 4:
        return False
    to.image[node] = to.emit(node.target, to.image[x], LAST_AXIS[axis % 4], *rest)
    return True


def _max_pool(to: Relayout, node: fx.Node) -> bool:
    x, kernel, stride, padding, dilation, ceil_mode = _defaults(node.args, (None, None, [], [0, 0], [1, 1], False))
    if len(shape_of(x)) != 4:
        return False
    geometry = (_pair(kernel), _pair(stride or kernel), _pair(padding), _pair(dilation))
    results = results_of(node)
    if 1 not in results:  # a frozen pool: nobody asks where the maxima were
        to.image[results[0]] = to.emit(gf.max_pool2d_values_nhwc.default, to.as_image(x), *geometry, ceil_mode)
        return True
    pooled = to.emit(gf.max_pool2d_nhwc.default, to.as_image(x), *geometry, ceil_mode)
    if 0 in results:
        to.image[results[0]] = to.emit(operator.getitem, pooled, 0)
    taps = to.taps[results[1]] = to.emit(operator.getitem, pooled, 1)
    if any(user.target is not aten.max_pool2d_with_indices_backward.default for user in results[1].users):
        width = shape_of(x)[3]  # somebody wants PyTorch's positions: ours are taps of the window
        to.image[results[1]] = to.emit(gf.pool_positions_nhwc.default, taps, width, *geometry)
    return True


def _max_pool_backward(to: Relayout, node: fx.Node) -> bool:
    gy, x, kernel, stride, padding, dilation, _, index = node.args
    if len(shape_of(x)) != 4 or index not in to.taps:
        return False
    geometry = (_pair(kernel), _pair(stride or kernel), _pair(padding), _pair(dilation))
    to.image[node] = to.emit(
        gf.max_pool2d_backward_nhwc.default, to.as_image(gy), to.taps[index], list(shape_of(x)[2:]), *geometry
    )
    return True


def _avg_pool_settings(
    kernel: Any, stride: Any, padding: Any, ceil_mode: Any, count_pad: Any, divisor: Any
) -> list[Any]:
    return [_pair(kernel), _pair(stride or kernel), _pair(padding), bool(ceil_mode), bool(count_pad), int(divisor or 0)]


def _avg_pool(to: Relayout, node: fx.Node) -> bool:
    x, *given = _defaults(node.args, (None, None, [], [0, 0], False, True, None))
    if len(shape_of(x)) != 4:
        return False
    to.image[node] = to.emit(gf.avg_pool2d_nhwc.default, to.as_image(x), *_avg_pool_settings(*given))
    return True


def _avg_pool_backward(to: Relayout, node: fx.Node) -> bool:
    gy, x, *given = node.args
    if len(shape_of(x)) != 4:
        return False
    size = list(shape_of(x)[2:])
    to.image[node] = to.emit(gf.avg_pool2d_backward_nhwc.default, to.as_image(gy), size, *_avg_pool_settings(*given))
    return True


def _adaptive_avg_pool(to: Relayout, node: fx.Node) -> bool:
    if len(shape_of(node)) != 4:
        return False
    to.image[node] = to.emit(gf.adaptive_avg_pool2d_nhwc.default, to.as_image(node.args[0]), list(shape_of(node)[2:]))
    return True


def _adaptive_avg_pool_backward(to: Relayout, node: fx.Node) -> bool:
    if len(shape_of(node)) != 4:
        return False
    gy = to.as_image(node.args[0])
    to.image[node] = to.emit(gf.adaptive_avg_pool2d_backward_nhwc.default, gy, list(shape_of(node)[2:]))
    return True


def _axis_map(to: Relayout, node: fx.Node) -> bool:
    x, axis, *rest = node.args
    if len(shape_of(x)) != 4:
        return False
    to.image[node] = to.emit(node.target, to.as_image(x), LAST_AXIS[axis], *rest)
    return True


def _constant_pad(to: Relayout, node: fx.Node) -> bool:
    x, pad, *value = node.args
    if x not in to.image or len(shape_of(x)) != 4:
        return False
    sides = [*pad, *[0] * (8 - len(pad))]  # of W, H, C, N
    width, height, channels, batch = (sides[at : at + 2] for at in range(0, 8, 2))
    to.image[node] = to.emit(node.target, to.image[x], [*channels, *width, *height, *batch], *value)
    return True


def _permute(to: Relayout, node: fx.Node) -> bool:
    """Models that put the channels last themselves (ConvNeXt) say what this layout already is."""
    x, order = node.args
    order = [axis % 4 for axis in order]
    if order == [0, 2, 3, 1] and x in to.image and x not in to.plain:
        to.plain[node] = to.image[x]
        return True
    if order == [0, 3, 1, 2]:
        to.image[node] = to.as_plain(x)
        return True
    return False


def _update(to: Relayout, node: fx.Node) -> bool:
    """Optimizer updates work element by element: a packed weight is updated packed."""
    weight = node.args[0]
    if weight not in to.packed:
        return False
    packed, layout = to.packed[weight]

    def pick(arg: fx.Node) -> Any:
        if shape_of(arg) == layout.logical_shape:
            return to.as_packed(arg, layout)
        return to.packed[arg][0] if arg in to.packed else to.as_plain(arg)  # one value for all taps, or a scalar

    updated = to.emit(node.target, packed, *fx.map_arg(node.args[1:], pick), **node.kwargs)
    if isinstance(node.meta["val"], torch.Tensor):
        to.packed[node] = (updated, layout)
    for index, result in results_of(node).items():
        to.packed[result] = (to.emit(operator.getitem, updated, index), layout)
    return True


def _square_sum(to: Relayout, node: fx.Node) -> bool:
    """The norm of a packed gradient is that of the plain one."""
    g, copies = node.args
    to.plain[node] = to.emit(node.target, to.packed[g][0] if g in to.packed else to.as_plain(g), copies)
    return True


def _take_channels(to: Relayout, node: fx.Node) -> bool:
    x, channels, *group = node.args
    to.image[node] = to.emit(node.target, to.as_image(x), to.as_plain(channels), *group, channels_last=True)
    return True


def _drawn_weights(to: Relayout, node: fx.Node) -> bool:
    """Weights of drawn channels are taken, put and spread packed: each operand lies as the convolution of its own."""
    *weights, channels, shape, groups = node.args
    whole = WeightLayout.for_conv(shape, groups)
    draw = Draw.of(shape, groups, shape_of(channels)[0])
    drawn = WeightLayout.for_conv(draw.drawn_shape(shape), draw.drawn_groups)
    layouts = {gf.take_weights.default: [whole], gf.put_weights.default: [whole, drawn]}.get(node.target, [drawn])
    operands = [to.as_packed(weight, layout) for weight, layout in zip(weights, layouts, strict=True)]
    made = to.emit(node.target, *operands, to.as_plain(channels), shape, groups, packed=True)
    to.packed[node] = (made, drawn if node.target is gf.take_weights.default else whole)
    return True


def _defaults(args: tuple[Any, ...], defaults: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*args, *defaults[len(args) :])


IMAGE_OPS: dict[Any, Callable[[Relayout, fx.Node], bool]] = {
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    operator.getitem: _getitem,
    gf.patch_sum.default: _patch,
    gf.patch_mean.default: _patch,
    gf.patch_broadcast.default: _patch,
    gf.scale_by_area.default: _patch,
    gf.regrid.default: _patch,
    gf.mask_count.default: _mask_count,
    gf.pack_mask.default: _pack_mask,
    gf.unpack_mask.default: _unpack_mask,
    gf.packed_mask_count.default: _packed_mask_count,
    gf.channel_mix.default: _channel_mix,
    gf.channel_mix_weight.default: _channel_mix_weight,
    aten.mean.dim: _reduction,
    aten.sum.dim_IntList: _reduction,
    gf.axis_map.default: _axis_map,
    aten.constant_pad_nd.default: _constant_pad,
    aten.permute.default: _permute,
    aten.expand.default: _expand,
    aten.reshape.default: _view,
    aten.cat.default: _cat,
    aten.slice.Tensor: _slice,
    aten.max_pool2d_with_indices.default: _max_pool,
    aten.max_pool2d_with_indices_backward.default: _max_pool_backward,
    aten.avg_pool2d.default: _avg_pool,
    aten.avg_pool2d_backward.default: _avg_pool_backward,
    aten._adaptive_avg_pool2d.default: _adaptive_avg_pool,
    aten._adaptive_avg_pool2d_backward.default: _adaptive_avg_pool_backward,
    gf.sgd_update.default: _update,
    gf.sgd_update_plain.default: _update,
    gf.adam_update.default: _update,
    gf.rmsprop_update.default: _update,
    gf.square_sum.default: _square_sum,
    gf.take_channels.default: _take_channels,
    gf.take_weights.default: _drawn_weights,
    gf.put_weights.default: _drawn_weights,
    gf.spread_weights.default: _drawn_weights,
}
