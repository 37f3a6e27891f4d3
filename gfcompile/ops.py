"""The gf operators as torch custom ops: every graph between two passes runs in plain PyTorch.

Patch operators take their windows as two lists (rows, cols) of five integers, `geometry.Windows.as_list()`, and
`channels_last`: False for [N, C, H, W] as PyTorch traces, True for [N, H, W, C] after the layout pass. The `_nhwc`
operators exist only after the layout pass; their weights are packed as `layouts.WeightLayout` says.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.library import custom_op

from gfcompile.geometry import ConvGeometry, Windows
from gfcompile.layouts import WeightLayout

aten = torch.ops.aten


def _to_nchw(value: Tensor, channels_last: bool) -> Tensor:
    return value.permute(0, 3, 1, 2) if channels_last else value


def _from_nchw(value: Tensor, channels_last: bool) -> Tensor:
    return (value.permute(0, 2, 3, 1) if channels_last else value).contiguous()


def _membership(windows: list[int], size: int, like: Tensor) -> Tensor:
    """0/1 matrix [patches, size]: which rows belong to which patch."""
    table = torch.zeros(windows[0], size, dtype=like.dtype, device=like.device)
    for patch, (start, stop) in enumerate(Windows(*windows).spans()):
        table[patch, start:stop] = 1
    return table


def _counts(rows: list[int], cols: list[int], like: Tensor) -> Tensor:
    high = torch.tensor([stop - start for start, stop in Windows(*rows).spans()], dtype=like.dtype)
    wide = torch.tensor([stop - start for start, stop in Windows(*cols).spans()], dtype=like.dtype)
    return torch.outer(high, wide).clamp(min=1)


@custom_op("gf::patch_sum", mutates_args=())
def patch_sum(x: Tensor, rows: list[int], cols: list[int], channels_last: bool = False) -> Tensor:
    """Sum of `x` over each patch's window."""
    image = _to_nchw(x, channels_last)
    high, wide = _membership(rows, image.shape[2], x), _membership(cols, image.shape[3], x)
    return _from_nchw(high @ image @ wide.T, channels_last)


@patch_sum.register_fake
def _(x: Tensor, rows: list[int], cols: list[int], channels_last: bool = False) -> Tensor:
    return x.new_empty(_patch_shape(x, rows, cols, channels_last))


def _patch_shape(x: Tensor, rows: list[int], cols: list[int], channels_last: bool) -> tuple[int, ...]:
    if channels_last:
        return (x.shape[0], rows[0], cols[0], x.shape[3])
    return (x.shape[0], x.shape[1], rows[0], cols[0])


@custom_op("gf::patch_mean", mutates_args=())
def patch_mean(x: Tensor, rows: list[int], cols: list[int], channels_last: bool = False) -> Tensor:
    """Mean of `x` over the real pixels of each patch."""
    sums = _to_nchw(patch_sum(x, rows, cols, channels_last), channels_last)
    return _from_nchw(sums / _counts(rows, cols, x), channels_last)


@patch_mean.register_fake
def _(x: Tensor, rows: list[int], cols: list[int], channels_last: bool = False) -> Tensor:
    return x.new_empty(_patch_shape(x, rows, cols, channels_last))


@custom_op("gf::patch_broadcast", mutates_args=())
def patch_broadcast(q: Tensor, rows: list[int], cols: list[int], size: list[int], channels_last: bool = False) -> Tensor:
    """Every pixel of a window takes its patch's value; pixels in no window take zero."""
    patches = _to_nchw(q, channels_last)
    high, wide = _membership(rows, size[0], q), _membership(cols, size[1], q)
    return _from_nchw(high.T @ patches @ wide, channels_last)


@patch_broadcast.register_fake
def _(q: Tensor, rows: list[int], cols: list[int], size: list[int], channels_last: bool = False) -> Tensor:
    if channels_last:
        return q.new_empty((q.shape[0], size[0], size[1], q.shape[3]))
    return q.new_empty((q.shape[0], q.shape[1], size[0], size[1]))


def _mix(g: Tensor, w: Tensor, groups: int, taps: list[int]) -> Tensor:
    """q[P] = sum over co and taps of w[co, ci, u] * g[P + middle - u*tap]; an axis with tap 0 has its taps summed."""
    for axis, tap in ((2, taps[0]), (3, taps[1])):
        if tap == 0:
            w = w.sum(axis, keepdim=True)
    kernel = (w.shape[2], w.shape[3])
    step = [max(tap, 1) for tap in taps]
    before = [s * (k - 1) - s * (k - 1) // 2 for s, k in zip(step, kernel, strict=True)]
    after = [s * (k - 1) // 2 for s, k in zip(step, kernel, strict=True)]
    padded = torch.nn.functional.pad(g, (before[1], after[1], before[0], after[0]))
    per_group = w.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1).flip((2, 3))  # [Ci, Co/groups, k, k]
    return torch.conv2d(padded, per_group, dilation=step, groups=groups)


@custom_op("gf::channel_mix", mutates_args=())
def channel_mix(g: Tensor, w: Tensor, groups: int, taps: list[int]) -> Tensor:
    """Patch gradients of the output [N, Co, P, Q] through the kernel to those of the input [N, Ci, P, Q]."""
    return _mix(g, w, groups, taps)


@channel_mix.register_fake
def _(g: Tensor, w: Tensor, groups: int, taps: list[int]) -> Tensor:
    return g.new_empty((g.shape[0], w.shape[1] * groups, g.shape[2], g.shape[3]))


def _mix_weight(g: Tensor, x_tilde: Tensor, groups: int, kernel: list[int]) -> Tensor:
    left, right = g.unflatten(1, (groups, -1)), x_tilde.unflatten(1, (groups, -1))
    mixed = torch.einsum("ngopq,ngipq->goi", left, right).flatten(0, 1)
    return mixed[:, :, None, None].expand(*mixed.shape, *kernel).contiguous()


@custom_op("gf::channel_mix_weight", mutates_args=())
def channel_mix_weight(g: Tensor, x_tilde: Tensor, groups: int, kernel: list[int]) -> Tensor:
    """Weight gradient [Co, Ci/groups, kh, kw] from patch gradients and patch sums: the same value for every tap."""
    return _mix_weight(g, x_tilde, groups, kernel)


@channel_mix_weight.register_fake
def _(g: Tensor, x_tilde: Tensor, groups: int, kernel: list[int]) -> Tensor:
    return g.new_empty((g.shape[1], x_tilde.shape[1] // groups, *kernel))


@custom_op("gf::filtered_convolution_backward", mutates_args=())
def filtered_convolution_backward(
    gy: Tensor,
    x: Tensor,
    w: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    r: int,
    reference: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradient filtering of one convolution as a single operator: what `select` writes and `filter` expands."""
    from gfcompile.filtering import FilterRecipe

    recipe = FilterRecipe.of(conv_geometry(x, w, gy, stride, padding, dilation, groups), r, reference)
    g = patch_mean(gy, *recipe.out_grid)
    x_tilde = patch_sum(x, *recipe.in_grid)
    q = _mix(g, w, groups, recipe.taps) * recipe.scale
    gx = patch_broadcast(q, *recipe.in_grid, list(x.shape[2:]))
    gw = _mix_weight(g, x_tilde, groups, list(w.shape[2:])) * recipe.scale
    return gx, gw, gy.sum((0, 2, 3))


@filtered_convolution_backward.register_fake
def _(
    gy: Tensor,
    x: Tensor,
    w: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    r: int,
    reference: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(w), gy.new_empty((gy.shape[1],))


def conv_geometry(
    x: Tensor, w: Tensor, y: Tensor, stride: list[int], padding: list[int], dilation: list[int], groups: int
) -> ConvGeometry:
    """Geometry of a 2-D convolution from its (possibly fake) tensors in NCHW."""
    return ConvGeometry(
        batch=x.shape[0],
        in_channels=x.shape[1],
        out_channels=w.shape[0],
        in_size=(x.shape[2], x.shape[3]),
        out_size=(y.shape[2], y.shape[3]),
        kernel=(w.shape[2], w.shape[3]),
        stride=(stride[0], stride[-1]),
        padding=(padding[0], padding[-1]),
        dilation=(dilation[0], dilation[-1]),
        groups=groups,
    )


@custom_op("gf::sgd_update", mutates_args=())
def sgd_update(w: Tensor, v: Tensor, g: Tensor, lr: Tensor, momentum: float, weight_decay: float) -> tuple[Tensor, Tensor]:
    """v' = momentum*v + g + weight_decay*w;  w' = w - lr*v'  (torch.optim.SGD without dampening or Nesterov)."""
    velocity = momentum * v + (g + weight_decay * w)
    return w - lr * velocity, velocity


@sgd_update.register_fake
def _(w: Tensor, v: Tensor, g: Tensor, lr: Tensor, momentum: float, weight_decay: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(w), torch.empty_like(v)


@custom_op("gf::sgd_update_plain", mutates_args=())
def sgd_update_plain(w: Tensor, g: Tensor, lr: Tensor, weight_decay: float) -> Tensor:
    """w' = w - lr*(g + weight_decay*w): SGD without momentum keeps no state."""
    return w - lr * (g + weight_decay * w)


@sgd_update_plain.register_fake
def _(w: Tensor, g: Tensor, lr: Tensor, weight_decay: float) -> Tensor:
    return torch.empty_like(w)


def _unpacked(w: Tensor, shape: list[int], groups: int) -> Tensor:
    return WeightLayout.for_conv(shape, groups).unpack(w)


def _packed(w: Tensor, groups: int) -> Tensor:
    return WeightLayout.for_conv(list(w.shape), groups).pack(w)


@custom_op("gf::conv2d_nhwc", mutates_args=())
def conv2d_nhwc(
    x: Tensor, w: Tensor, shape: list[int], stride: list[int], padding: list[int], dilation: list[int], groups: int
) -> Tensor:
    """Convolution of [N, H, W, Ci] by packed weights (`shape` is their logical shape) -> [N, OH, OW, Co]."""
    y = torch.conv2d(_to_nchw(x, True), _unpacked(w, shape, groups), None, stride, padding, dilation, groups)
    return _from_nchw(y, True)


@conv2d_nhwc.register_fake
def _(x: Tensor, w: Tensor, shape: list[int], stride: list[int], padding: list[int], dilation: list[int], groups: int) -> Tensor:
    size = [
        (x.shape[1 + i] + 2 * padding[i] - dilation[i] * (shape[2 + i] - 1) - 1) // stride[i] + 1 for i in range(2)
    ]
    return x.new_empty((x.shape[0], *size, shape[0]))


@custom_op("gf::conv2d_input_grad_nhwc", mutates_args=())
def conv2d_input_grad_nhwc(
    gy: Tensor,
    w: Tensor,
    shape: list[int],
    size: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    """Exact gradient of the convolution's input, [N, H, W, Ci]."""
    weight, gradient = _unpacked(w, shape, groups), _to_nchw(gy, True)
    x = gy.new_empty((gy.shape[0], shape[1] * groups, *size))
    grads = aten.convolution_backward(
        gradient, x, weight, None, stride, padding, dilation, False, [0, 0], groups, [True, False, False]
    )
    return _from_nchw(grads[0], True)


@conv2d_input_grad_nhwc.register_fake
def _(
    gy: Tensor,
    w: Tensor,
    shape: list[int],
    size: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    return gy.new_empty((gy.shape[0], *size, shape[1] * groups))


@custom_op("gf::conv2d_weight_grad_nhwc", mutates_args=())
def conv2d_weight_grad_nhwc(
    gy: Tensor, x: Tensor, shape: list[int], stride: list[int], padding: list[int], dilation: list[int], groups: int
) -> Tensor:
    """Exact gradient of the convolution's weights, packed."""
    grads = aten.convolution_backward(
        _to_nchw(gy, True),
        _to_nchw(x, True),
        x.new_empty(shape),
        None,
        stride,
        padding,
        dilation,
        False,
        [0, 0],
        groups,
        [False, True, False],
    )
    return _packed(grads[1], groups)


@conv2d_weight_grad_nhwc.register_fake
def _(gy: Tensor, x: Tensor, shape: list[int], stride: list[int], padding: list[int], dilation: list[int], groups: int) -> Tensor:
    return gy.new_empty(WeightLayout.for_conv(shape, groups).physical_shape)


@custom_op("gf::channel_mix_nhwc", mutates_args=())
def channel_mix_nhwc(g: Tensor, w: Tensor, shape: list[int], groups: int, taps: list[int]) -> Tensor:
    """`channel_mix` on [N, P, Q, Co] with packed weights."""
    return _from_nchw(_mix(_to_nchw(g, True), _unpacked(w, shape, groups), groups, taps), True)


@channel_mix_nhwc.register_fake
def _(g: Tensor, w: Tensor, shape: list[int], groups: int, taps: list[int]) -> Tensor:
    return g.new_empty((*g.shape[:3], shape[1] * groups))


@custom_op("gf::channel_mix_weight_nhwc", mutates_args=())
def channel_mix_weight_nhwc(g: Tensor, x_tilde: Tensor, shape: list[int], groups: int) -> Tensor:
    """`channel_mix_weight` from [N, P, Q, C] values into packed weights."""
    return _packed(_mix_weight(_to_nchw(g, True), _to_nchw(x_tilde, True), groups, shape[2:]), groups)


@channel_mix_weight_nhwc.register_fake
def _(g: Tensor, x_tilde: Tensor, shape: list[int], groups: int) -> Tensor:
    return g.new_empty(WeightLayout.for_conv(shape, groups).physical_shape)


@custom_op("gf::max_pool2d_nhwc", mutates_args=())
def max_pool2d_nhwc(
    x: Tensor, kernel: list[int], stride: list[int], padding: list[int], dilation: list[int], ceil_mode: bool
) -> tuple[Tensor, Tensor]:
    """Max pooling and the flat H*W position of each maximum."""
    y, index = aten.max_pool2d_with_indices(_to_nchw(x, True), kernel, stride, padding, dilation, ceil_mode)
    return _from_nchw(y, True), _from_nchw(index, True)


@max_pool2d_nhwc.register_fake
def _(
    x: Tensor, kernel: list[int], stride: list[int], padding: list[int], dilation: list[int], ceil_mode: bool
) -> tuple[Tensor, Tensor]:
    y, index = aten.max_pool2d_with_indices(x.permute(0, 3, 1, 2), kernel, stride, padding, dilation, ceil_mode)
    shape = (y.shape[0], y.shape[2], y.shape[3], y.shape[1])
    return x.new_empty(shape), index.new_empty(shape)


@custom_op("gf::max_pool2d_backward_nhwc", mutates_args=())
def max_pool2d_backward_nhwc(
    gy: Tensor, index: Tensor, size: list[int], kernel: list[int], stride: list[int], padding: list[int], dilation: list[int]
) -> Tensor:
    """Each gradient goes to the pixel that was the maximum."""
    gradient, where = _to_nchw(gy, True).flatten(2), _to_nchw(index, True).flatten(2)
    spread = gradient.new_zeros((*gradient.shape[:2], size[0] * size[1])).scatter_add(2, where, gradient)
    return _from_nchw(spread.unflatten(2, size), True)


@max_pool2d_backward_nhwc.register_fake
def _(
    gy: Tensor, index: Tensor, size: list[int], kernel: list[int], stride: list[int], padding: list[int], dilation: list[int]
) -> Tensor:
    return gy.new_empty((gy.shape[0], *size, gy.shape[3]))
