"""Drawn channels, as `ops.channels` defines them: rows of input channels are gathered and scattered."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from gfcompile.export.emitter import Emitter, Operand, Value
from gfcompile.export.gf.images import packed as pack
from gfcompile.export.gf.images import unpacked as unpack
from gfcompile.export.table import Table
from gfcompile.geometry.channel_draws import Draw
from gfcompile.ops import gf

TABLE = Table()
Ints = Sequence[int]


@TABLE.writes(gf.take_channels.default)
def _take_channels(
    to: Emitter, out: Value, x: Value, channels: Value, inputs: int, outputs: int, channels_last: bool = False
) -> str:
    places: Operand = channels
    if (inputs, outputs) != (1, 1):
        numbers = to.op("Reshape", to.cast(channels, torch.int64), [-1, inputs])
        first = to.op("Gather", numbers, np.array([0]), axis=1)
        groups = to.op("Div", first, np.array(inputs))
        places = to.op("Add", to.op("Mul", groups, np.array(outputs)), np.arange(outputs))
        places = to.op("Reshape", places, [-1])
    return to.op("Gather", x, places, axis=3 if channels_last else 1)


@TABLE.writes(gf.take_weights.default)
def _take_weights(
    to: Emitter, out: Value, w: Value, channels: Value, shape: Ints, groups: int, packed: bool = False
) -> str:
    draw = Draw.of(shape, groups, channels.shape[0])
    rows = _by_input(to, unpack(to, w, shape, groups) if packed else w, shape, groups)
    drawn = draw.drawn_shape(shape)
    taken = _by_output(to, to.op("Gather", rows, channels, axis=0), drawn, draw.drawn_groups)
    return pack(to, taken, drawn, draw.drawn_groups) if packed else taken


@TABLE.writes(gf.put_weights.default)
def _put_weights(
    to: Emitter, out: Value, w: Value, values: Value, channels: Value, shape: Ints, groups: int, packed: bool = False
) -> str:
    rows = _by_input(to, unpack(to, w, shape, groups) if packed else w, shape, groups)
    return _put(to, rows, values, channels, shape, groups, packed)


@TABLE.writes(gf.spread_weights.default)
def _spread_weights(
    to: Emitter, out: Value, values: Value, channels: Value, shape: Ints, groups: int, packed: bool = False
) -> str:
    draw = Draw.of(shape, groups, channels.shape[0])
    zeros = to.filled([draw.in_channels, draw.group_outputs, *shape[2:]], 0, torch.float32)
    return _put(to, zeros, values, channels, shape, groups, packed)


def _put(to: Emitter, rows: str, values: Value, channels: Value, shape: Ints, groups: int, packed: bool) -> str:
    draw = Draw.of(shape, groups, channels.shape[0])
    drawn = draw.drawn_shape(shape)
    new = unpack(to, values, drawn, draw.drawn_groups) if packed else values
    places = to.op("Reshape", to.cast(channels, torch.int64), [-1, 1])
    changed = to.op("ScatterND", rows, places, _by_input(to, new, drawn, draw.drawn_groups))
    whole = _by_output(to, changed, shape, groups)
    return pack(to, whole, shape, groups) if packed else whole


def _by_input(to: Emitter, w: Value, shape: Ints, groups: int) -> str:
    """[Co, Ci/groups, kh, kw] -> [Ci, Co/groups, kh, kw]"""
    by_group = to.op("Reshape", w, [groups, shape[0] // groups, *shape[1:]])
    return to.op("Reshape", to.op("Transpose", by_group, perm=[0, 2, 1, 3, 4]), [-1, shape[0] // groups, *shape[2:]])


def _by_output(to: Emitter, rows: str, shape: Ints, groups: int) -> str:
    by_group = to.op("Reshape", rows, [groups, shape[1], shape[0] // groups, *shape[2:]])
    return to.op("Reshape", to.op("Transpose", by_group, perm=[0, 2, 1, 3, 4]), list(shape))
