"""Say what a user's model says in the operators that the compiler knows, before it is differentiated.

Each entry is plain PyTorch over ATen and the gf operators: tracing goes through it, so its gradient comes with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from gfcompile.frontend.formulas import FORMULAS
from gfcompile.ops import gf

aten = torch.ops.aten
ASSERTIONS = {aten._assert_tensor_metadata.default}  # what the trace was promised holds for every batch
Function = Callable[..., Any]


def speak_dialect(body: fx.GraphModule, seed: fx.Node | None = None) -> None:
    """Replace the operators of an exported graph in place. Random numbers come from `seed`, a stream an operator."""
    stream = 0
    for node in list(body.graph.nodes):
        if node.op != "call_function":
            continue
        if node.target in RANDOM and seed is not None:
            node.args = (seed, stream, *node.args)
            node.target = RANDOM[node.target]
            stream += 1
        elif node.target in DIALECT:
            node.target = DIALECT[node.target]
    body.recompile()


# ---- resizing and padding: one sparse map an axis


def _resize(kind: str, *, takes_align: bool) -> Function:
    def resize_vec(x: Tensor, size: Sequence[int] | None, *rest: Any) -> Tensor:
        align, scales = rest if takes_align else (False, *rest)
        spatial = x.shape[2:]
        if size is None:
            sizes = [math.floor(length * scale) for length, scale in zip(spatial, scales, strict=True)]
        else:
            sizes, scales = list(size), None
        return _resize_axes(x, kind, sizes, bool(align), scales or [None] * len(sizes))

    return resize_vec


def _resize_default(kind: str, *, takes_align: bool) -> Function:
    def resize_default(x: Tensor, size: Sequence[int], *rest: Any) -> Tensor:
        align, *scales = rest if takes_align else (False, *rest)
        return _resize_axes(x, kind, list(size), bool(align), [*scales, *[None] * (len(size) - len(scales))])

    return resize_default


def _resize_axes(x: Tensor, kind: str, sizes: list[int], align: bool, scales: Sequence[float | None]) -> Tensor:
    for axis, (size, scale) in enumerate(zip(sizes, scales, strict=True), 2):
        if size != x.shape[axis] or (scale is not None and scale != 1):
            x = gf.axis_map(x, axis, size, kind, [float(align), float(scale or 0)], False)
    return x


def _pad(x: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    if mode == "constant":
        return aten.constant_pad_nd(x, pad, 0.0 if value is None else value)
    return _pad_axes(mode)(x, pad)


def _pad_axes(mode: str) -> Function:
    def pad_axes(x: Tensor, pad: Sequence[int]) -> Tensor:
        for position in range(0, len(pad), 2):
            before, after = int(pad[position]), int(pad[position + 1])
            axis = x.dim() - 1 - position // 2
            if before or after:
                size = x.shape[axis] + before + after
                x = gf.axis_map(x, axis, size, mode, [float(before), float(after)], False)
        return x

    return pad_axes


# ---- convolutions and pools that are not 2-D


def _conv1d(
    x: Tensor, w: Tensor, b: Tensor | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Tensor:
    (step,), (gap,) = _ints(stride, 1), _ints(dilation, 1)
    around = padding if isinstance(padding, str) else [0, *_ints(padding, 1)]
    y = F.conv2d(x.unsqueeze(-2), w.unsqueeze(-2), b, [1, step], around, [1, gap], groups)
    return y.squeeze(-2)


def _conv_transpose1d(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    (step,), (around,), (more,), (gap,) = (_ints(value, 1) for value in (stride, padding, output_padding, dilation))
    y = F.conv_transpose2d(x.unsqueeze(-2), w.unsqueeze(-2), b, [1, step], [0, around], [0, more], groups, [1, gap])
    return y.squeeze(-2)


def _conv3d(
    x: Tensor, w: Tensor, b: Tensor | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Tensor:
    """The sum over the depth of the kernel of 2-D convolutions, the depth of the volume in their batch."""
    steps, gaps = _ints(stride, 3), _ints(dilation, 3)
    if isinstance(padding, str):
        total = [gap * (size - 1) if padding == "same" else 0 for gap, size in zip(gaps, w.shape[2:], strict=True)]
        sides = [side for size in reversed(total) for side in (size // 2, size - size // 2)]
    else:
        sides = [side for size in reversed(_ints(padding, 3)) for side in (size, size)]
    padded = aten.constant_pad_nd(x, sides, 0.0) if any(sides) else x
    samples, channels, depth, height, width = padded.shape
    planes = (depth - gaps[0] * (w.shape[2] - 1) - 1) // steps[0] + 1
    total_map: Tensor | None = None
    for tap in range(w.shape[2]):
        first = tap * gaps[0]
        part = padded[:, :, first : first + (planes - 1) * steps[0] + 1 : steps[0]]
        flat = part.transpose(1, 2).reshape(samples * planes, channels, height, width)
        bias = b if tap == 0 else None
        y = F.conv2d(flat, w[:, :, tap], bias, steps[1:], 0, gaps[1:], groups)
        total_map = y if total_map is None else total_map + y
    assert total_map is not None
    return total_map.reshape(samples, planes, *total_map.shape[1:]).transpose(1, 2)


def _max_pool3d(
    x: Tensor, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Tensor:
    """A maximum over planes of maxima in planes."""
    sizes = _ints(kernel, 3)
    steps, around, gaps = _ints(stride or kernel, 3), _ints(padding, 3), _ints(dilation, 3)
    samples, channels, depth, height, width = x.shape
    flat = x.reshape(samples, channels * depth, height, width)
    inner = F.max_pool2d(flat, sizes[1:], steps[1:], around[1:], gaps[1:], ceil_mode)
    rows, cols = inner.shape[2:]
    columns = inner.reshape(samples, channels, depth, rows * cols)
    outer = F.max_pool2d(columns, [sizes[0], 1], [steps[0], 1], [around[0], 0], [gaps[0], 1], ceil_mode)
    return outer.reshape(samples, channels, outer.shape[2], rows, cols)


def _avg_pool3d(
    x: Tensor,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor: int | None = None,
) -> Tensor:
    """An average over planes of averages in planes."""
    sizes, steps, around = _ints(kernel, 3), _ints(stride or kernel, 3), _ints(padding, 3)
    samples, channels, depth, height, width = x.shape
    flat = x.reshape(samples, channels * depth, height, width)
    inner = F.avg_pool2d(flat, sizes[1:], steps[1:], around[1:], ceil_mode, count_include_pad, divisor)
    rows, cols = inner.shape[2:]
    columns = inner.reshape(samples, channels, depth, rows * cols)
    once = 1 if divisor else None
    outer = F.avg_pool2d(columns, [sizes[0], 1], [steps[0], 1], [around[0], 0], ceil_mode, count_include_pad, once)
    return outer.reshape(samples, channels, outer.shape[2], rows, cols)


def _adaptive_avg_pool3d(x: Tensor, size: Any) -> Tensor:
    sizes = [wanted if wanted is not None else have for wanted, have in zip(_ints(size, 3), x.shape[2:], strict=True)]
    samples, channels, depth, height, width = x.shape
    inner = F.adaptive_avg_pool2d(x.reshape(samples, channels * depth, height, width), sizes[1:])
    columns = inner.reshape(samples, channels, depth, sizes[1] * sizes[2])
    outer = F.adaptive_avg_pool2d(columns, [sizes[0], sizes[1] * sizes[2]])
    return outer.reshape(samples, channels, *sizes)


def _adaptive_max_pool2d(x: Tensor, size: Any) -> tuple[Tensor, Tensor]:
    """Values and PyTorch's positions in the plane; windows that are not all of one size are gathered first."""
    height, width = x.shape[-2:]
    rows, cols = _ints(size, 2)
    if height % rows == 0 and width % cols == 0 and x.dim() == 4:
        pooled: tuple[Tensor, Tensor] = aten.max_pool2d_with_indices(x, [height // rows, width // cols])
        return pooled
    row_of, col_of = _windows(height, rows), _windows(width, cols)  # [rows, most], [cols, most]
    where = row_of[:, None, :, None] * width + col_of[None, :, None, :]  # [rows, cols, most, most]
    where = where.reshape(rows, cols, -1)
    held = x.flatten(-2)[..., where]
    values, tap = held.max(dim=-1)
    return values, where.expand(*tap.shape, where.shape[-1]).gather(-1, tap.unsqueeze(-1)).squeeze(-1)


def _windows(length: int, count: int) -> Tensor:
    """The elements of each adaptive window; a window shorter than the longest repeats its last one."""
    which = torch.arange(count)
    starts, ends = which * length // count, ((which + 1) * length + count - 1) // count
    most = max(-(-(index + 1) * length // count) - index * length // count for index in range(count))
    return torch.minimum(starts[:, None] + torch.arange(most), ends[:, None] - 1)


def _adaptive_max_pool1d(x: Tensor, size: Any) -> tuple[Tensor, Tensor]:
    values, where = _adaptive_max_pool2d(x.unsqueeze(-2), [1, *_ints(size, 1)])
    return values.squeeze(-2), where.squeeze(-2)


def _adaptive_max_pool3d(x: Tensor, size: Any) -> tuple[Tensor, Tensor]:
    """A maximum over planes of maxima in planes, and PyTorch's positions in the volume."""
    samples, channels, depth, height, width = x.shape
    wanted = zip(_ints(size, 3), x.shape[2:], strict=True)
    planes, rows, cols = (have if want is None else want for want, have in wanted)
    inner, pixel = _adaptive_max_pool2d(x.reshape(samples, channels * depth, height, width), [rows, cols])
    columns = [samples, channels, depth, rows * cols]
    values, place = _adaptive_max_pool2d(inner.reshape(columns), [planes, rows * cols])
    plane = place // (rows * cols)
    position = plane * (height * width) + pixel.reshape(columns).gather(2, plane)
    shape = [samples, channels, planes, rows, cols]
    return values.reshape(shape), position.reshape(shape)


def _ints(value: Any, count: int) -> list[int]:
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    return values * count if len(values) == 1 else values


# ---- sampling where a grid says


BILINEAR, NEAREST = 0, 1  # PyTorch's numbers
ZEROS, BORDER, REFLECTION = 0, 1, 2


def _grid_sample(x: Tensor, grid: Tensor, mode: int, padding: int, align: bool) -> Tensor:
    """x [N, C, H, W] at the places of grid [N, h, w, 2], each coordinate between -1 and 1."""
    if x.dim() != 4 or mode not in (BILINEAR, NEAREST):
        raise NotImplementedError("grid_sample is bilinear or nearest, on images")
    height, width = x.shape[2:]
    col = _place(grid[..., 0], width, padding, align)
    row = _place(grid[..., 1], height, padding, align)
    if mode == NEAREST:
        return _pixels(x, row.detach().round(), col.detach().round())
    top, left = row.detach().floor(), col.detach().floor()
    down, right = (row - top).unsqueeze(1), (col - left).unsqueeze(1)  # [N, 1, h, w]
    upper = _pixels(x, top, left) * (1 - right) + _pixels(x, top, left + 1) * right
    lower = _pixels(x, top + 1, left) * (1 - right) + _pixels(x, top + 1, left + 1) * right
    return upper * (1 - down) + lower * down


def _place(at: Tensor, size: int, padding: int, align: bool) -> Tensor:
    """A coordinate of the grid in pixels."""
    place = (at + 1) * ((size - 1) / 2) if align else ((at + 1) * size - 1) / 2
    if padding == REFLECTION:
        low, span = (0.0, size - 1.0) if align else (-0.5, float(size))
        if span == 0:
            return place * 0
        distance = (place - low).abs()
        folds = (distance / span).detach().floor()
        rest = distance - folds * span
        place = torch.where(folds % 2 == 0, rest, span - rest) + low
    return place if padding == ZEROS else place.clamp(0, size - 1)


def _pixels(x: Tensor, row: Tensor, col: Tensor) -> Tensor:
    """[N, C, h, w]: the pixels at whole rows and columns, zero outside."""
    samples, channels, height, width = x.shape
    inside = (row >= 0) & (row < height) & (col >= 0) & (col < width)
    where = row.clamp(0, height - 1).long() * width + col.clamp(0, width - 1).long()  # [N, h, w]
    index = where.reshape(samples, 1, -1).expand(samples, channels, -1)
    held = x.flatten(2).gather(2, index).reshape(samples, channels, *row.shape[1:])
    return torch.where(inside.unsqueeze(1), held, 0.0)


# ---- attention


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    drop: Callable[[Tensor], Tensor] = lambda weights: weights,
) -> Tensor:
    """softmax(q k' * scale + mask) v, as the formula says; `drop` acts on the softmax."""
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    scores = (query * (scale if scale is not None else query.shape[-1] ** -0.5)) @ key.transpose(-2, -1)
    if is_causal:
        rows, cols = scores.shape[-2:]
        attn_mask = torch.arange(rows)[:, None] >= torch.arange(cols)
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        scores = scores.masked_fill(attn_mask.logical_not(), -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return drop(scores.softmax(-1)) @ value


def _rrelu(
    x: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, generator: Any = None
) -> Tensor:
    """Outside of training the slope is the middle one."""
    return F.leaky_relu(x, (lower + upper) / 2)


# ---- weights


def _weight_norm(direction: Tensor, size: Tensor, axis: int = 0) -> Tensor:
    return _weight_norm_interface(direction, size, axis)[0]


def _weight_norm_interface(direction: Tensor, size: Tensor, axis: int = 0) -> tuple[Tensor, Tensor]:
    """The direction scaled to `size` along every axis but one, and its own size."""
    others = [each for each in range(direction.dim()) if each != axis]
    norm = (direction * direction).sum(others, keepdim=True).sqrt()
    return direction * (size / norm), norm


# ---- random numbers: (seed, stream, the operator's own arguments)


def _keep(seed: Tensor, stream: int, shape: Sequence[int], p: float) -> Tensor:
    """1 with probability 1 - p."""
    kept: Tensor = gf.uniform(seed, stream, list(shape)) >= p
    return kept


def _dropout(seed: Tensor, stream: int, x: Tensor, p: float, train: bool) -> Tensor:
    if not train or p == 0:
        return x
    return x * _keep(seed, stream, x.shape, p) * _inverse(1 - p)


def _feature_dropout(seed: Tensor, stream: int, x: Tensor, p: float, train: bool) -> Tensor:
    if not train or p == 0:
        return x
    kept = _keep(seed, stream, x.shape[:2], p).reshape(*x.shape[:2], *[1] * (x.dim() - 2))
    return x * kept * _inverse(1 - p)


def _random_attention(seed: Tensor, stream: int, *args: Any, **settings: Any) -> Tensor:
    p = args[4] if len(args) > 4 else settings.get("dropout_p", 0.0)
    settings["drop"] = lambda weights: _dropout(seed, stream, weights, p, True)
    return _attention(*args, **settings)


def _random_rrelu(
    seed: Tensor,
    stream: int,
    x: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: Any = None,
) -> Tensor:
    if not training:
        return _rrelu(x, lower, upper)
    slope = gf.uniform(seed, stream, list(x.shape)) * (upper - lower) + lower
    return torch.where(x >= 0, x, x * slope)


ALPHA = -1.7580993408473766  # what SELU gives for minus infinity


def _alpha_dropout(seed: Tensor, stream: int, x: Tensor, p: float, train: bool) -> Tensor:
    return _alpha(x, p, _keep(seed, stream, x.shape, p)) if train and p else x


def _feature_alpha_dropout(seed: Tensor, stream: int, x: Tensor, p: float, train: bool) -> Tensor:
    if not train or p == 0:
        return x
    return _alpha(x, p, _keep(seed, stream, x.shape[:2], p).reshape(*x.shape[:2], *[1] * (x.dim() - 2)))


def _alpha(x: Tensor, p: float, kept: Tensor) -> Tensor:
    """Dropped values become ALPHA; scaled and shifted so that mean and variance stay."""
    a = _inverse(math.sqrt((ALPHA**2 * p + 1) * (1 - p)))
    return torch.where(kept, x, ALPHA) * a - ALPHA * a * p


def _inverse(value: float) -> float:
    return 1 / value if value else 0.0


def _bernoulli_in_place(seed: Tensor, stream: int, x: Tensor, p: float = 0.5, generator: Any = None) -> Tensor:
    return x.copy_(gf.uniform(seed, stream, list(x.shape)) < p)


def _bernoulli(seed: Tensor, stream: int, x: Tensor, p: float, generator: Any = None) -> Tensor:
    return (gf.uniform(seed, stream, list(x.shape)) < p).to(x.dtype)


def _bernoulli_of(seed: Tensor, stream: int, x: Tensor, generator: Any = None) -> Tensor:
    return (gf.uniform(seed, stream, list(x.shape)) < x).to(x.dtype)


def _rand(seed: Tensor, stream: int, size: Sequence[int], **_: Any) -> Tensor:
    drawn: Tensor = gf.uniform(seed, stream, list(size))
    return drawn


def _rand_like(seed: Tensor, stream: int, x: Tensor, **_: Any) -> Tensor:
    return _rand(seed, stream, x.shape)


def _randn(seed: Tensor, stream: int, size: Sequence[int], **_: Any) -> Tensor:
    """Box and Muller's transform of two numbers each."""
    pair = gf.uniform(seed, stream, [2, *size])
    radius = torch.sqrt(-2 * torch.log(1 - pair[0]))
    return radius * torch.cos(2 * math.pi * pair[1])


def _randn_like(seed: Tensor, stream: int, x: Tensor, **_: Any) -> Tensor:
    return _randn(seed, stream, x.shape)


DIALECT: dict[Any, Function] = {
    **FORMULAS,
    aten.upsample_nearest1d.vec: _resize("nearest", takes_align=False),
    aten.upsample_nearest2d.vec: _resize("nearest", takes_align=False),
    aten.upsample_nearest3d.vec: _resize("nearest", takes_align=False),
    aten._upsample_nearest_exact1d.vec: _resize("nearest-exact", takes_align=False),
    aten._upsample_nearest_exact2d.vec: _resize("nearest-exact", takes_align=False),
    aten._upsample_nearest_exact3d.vec: _resize("nearest-exact", takes_align=False),
    aten.upsample_linear1d.vec: _resize("linear", takes_align=True),
    aten.upsample_bilinear2d.vec: _resize("linear", takes_align=True),
    aten.upsample_trilinear3d.vec: _resize("linear", takes_align=True),
    aten.upsample_bicubic2d.vec: _resize("cubic", takes_align=True),
    aten._upsample_bilinear2d_aa.vec: _resize("linear-antialias", takes_align=True),
    aten._upsample_bicubic2d_aa.vec: _resize("cubic-antialias", takes_align=True),
    aten.upsample_nearest2d.default: _resize_default("nearest", takes_align=False),
    aten._upsample_nearest_exact2d.default: _resize_default("nearest-exact", takes_align=False),
    aten.upsample_bilinear2d.default: _resize_default("linear", takes_align=True),
    aten.upsample_bicubic2d.default: _resize_default("cubic", takes_align=True),
    aten.pad.default: _pad,
    aten.reflection_pad1d.default: _pad_axes("reflect"),
    aten.reflection_pad2d.default: _pad_axes("reflect"),
    aten.reflection_pad3d.default: _pad_axes("reflect"),
    aten.replication_pad1d.default: _pad_axes("replicate"),
    aten.replication_pad2d.default: _pad_axes("replicate"),
    aten.replication_pad3d.default: _pad_axes("replicate"),
    aten._pad_circular.default: _pad_axes("circular"),
    aten.conv1d.default: _conv1d,
    aten.conv1d.padding: _conv1d,
    aten.conv_transpose1d.default: _conv_transpose1d,
    aten.conv3d.default: _conv3d,
    aten.conv3d.padding: _conv3d,
    aten.max_pool3d.default: _max_pool3d,
    aten.avg_pool3d.default: _avg_pool3d,
    aten.adaptive_avg_pool3d.default: _adaptive_avg_pool3d,
    aten.adaptive_max_pool1d.default: _adaptive_max_pool1d,
    aten.adaptive_max_pool2d.default: _adaptive_max_pool2d,
    aten.adaptive_max_pool3d.default: _adaptive_max_pool3d,
    aten._weight_norm.default: _weight_norm,
    aten._weight_norm_interface.default: _weight_norm_interface,
    aten.grid_sampler.default: _grid_sample,
    aten.grid_sampler_2d.default: _grid_sample,
    aten.scaled_dot_product_attention.default: _attention,
    aten.rrelu.default: _rrelu,
}

RANDOM: dict[Any, Function] = {
    aten.dropout.default: _dropout,
    aten.dropout_.default: _dropout,
    aten.feature_dropout.default: _feature_dropout,
    aten.alpha_dropout.default: _alpha_dropout,
    aten.feature_alpha_dropout.default: _feature_alpha_dropout,
    aten.scaled_dot_product_attention.default: _random_attention,
    aten.rrelu.default: _random_rrelu,
    aten.bernoulli_.float: _bernoulli_in_place,
    aten.bernoulli.p: _bernoulli,
    aten.bernoulli.default: _bernoulli_of,
    aten.rand.default: _rand,
    aten.rand_like.default: _rand_like,
    aten.randn.default: _randn,
    aten.randn_like.default: _randn_like,
}
