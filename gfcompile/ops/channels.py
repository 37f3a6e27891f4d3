"""Drawn input channels of a convolution: those of a map, and the weights that they touch.

`channels` are the drawn input channels, ascending (`draws.Draw` says which may be drawn together); `shape` is the whole
weight's [Co, Ci/groups, kh, kw]. `packed` weights lie as `layouts.WeightLayout` says, those of the drawn channels as
the weight of a convolution of their own.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.library import custom_op

from gfcompile.geometry.channel_draws import Draw
from gfcompile.geometry.layouts import WeightLayout
from gfcompile.ops.images import packed as pack
from gfcompile.ops.images import unpacked as unpack


@custom_op("gf::take_channels", mutates_args=())
def take_channels(x: Tensor, channels: Tensor, inputs: int, outputs: int, channels_last: bool = False) -> Tensor:
    """The drawn channels of a map, [N, C, H, W] -> [N, drawn, H, W].

    With (inputs, outputs) the map is an output of which whole groups are drawn: `inputs` channels of `channels` are a
    group, and it has `outputs` channels here. (1, 1) are the channels themselves.
    """
    return x.index_select(3 if channels_last else 1, _places(channels, inputs, outputs))


@take_channels.register_fake
def _(x: Tensor, channels: Tensor, inputs: int, outputs: int, channels_last: bool = False) -> Tensor:
    shape = list(x.shape)
    shape[3 if channels_last else 1] = channels.shape[0] // inputs * outputs
    return x.new_empty(shape)


def _places(channels: Tensor, inputs: int, outputs: int) -> Tensor:
    groups = channels[::inputs].long() // inputs
    return (groups[:, None] * outputs + torch.arange(outputs, device=channels.device)).reshape(-1)


@custom_op("gf::take_weights", mutates_args=())
def take_weights(w: Tensor, channels: Tensor, shape: list[int], groups: int, packed: bool = False) -> Tensor:
    """The weights that the drawn channels touch."""
    draw = Draw.of(shape, groups, channels.shape[0])
    whole = unpack(w, shape, groups) if packed else w
    taken = _by_output(_by_input(whole, groups)[channels.long()], draw.drawn_groups, draw.drawn_shape(shape))
    return pack(taken, draw.drawn_groups) if packed else taken


@take_weights.register_fake
def _(w: Tensor, channels: Tensor, shape: list[int], groups: int, packed: bool = False) -> Tensor:
    draw = Draw.of(shape, groups, channels.shape[0])
    drawn = draw.drawn_shape(shape)
    return w.new_empty(WeightLayout.for_conv(drawn, draw.drawn_groups).physical_shape if packed else drawn)


@custom_op("gf::put_weights", mutates_args=())
def put_weights(
    w: Tensor, values: Tensor, channels: Tensor, shape: list[int], groups: int, packed: bool = False
) -> Tensor:
    """The weights with those of the drawn channels replaced."""
    draw = Draw.of(shape, groups, channels.shape[0])
    rows = _by_input((unpack(w, shape, groups) if packed else w).clone(), groups)
    new = unpack(values, draw.drawn_shape(shape), draw.drawn_groups) if packed else values
    rows[channels.long()] = _by_input(new, draw.drawn_groups)
    whole = _by_output(rows, groups, shape)
    return pack(whole, groups) if packed else whole


@put_weights.register_fake
def _(w: Tensor, values: Tensor, channels: Tensor, shape: list[int], groups: int, packed: bool = False) -> Tensor:
    return torch.empty_like(w)


@custom_op("gf::spread_weights", mutates_args=())
def spread_weights(values: Tensor, channels: Tensor, shape: list[int], groups: int, packed: bool = False) -> Tensor:
    """Values of the drawn channels' weights as a whole weight: zero for the channels that are not drawn."""
    zeros = values.new_zeros(WeightLayout.for_conv(shape, groups).physical_shape if packed else shape)
    return put_weights(zeros, values, channels, shape, groups, packed)


@spread_weights.register_fake
def _(values: Tensor, channels: Tensor, shape: list[int], groups: int, packed: bool = False) -> Tensor:
    return values.new_empty(WeightLayout.for_conv(shape, groups).physical_shape if packed else shape)


def _by_input(w: Tensor, groups: int) -> Tensor:
    """[Co, Ci/groups, kh, kw] -> [Ci, Co/groups, kh, kw]: a row per input channel, with all the weights it touches."""
    return w.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)


def _by_output(rows: Tensor, groups: int, shape: list[int]) -> Tensor:
    return rows.unflatten(0, (groups, -1)).transpose(1, 2).reshape(shape).contiguous()
