"""Drawn channels: ops/channels.py in the kernels' words, images [N,H,W,C] and packed weights."""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import te, tirx
from tvm.script import tirx as T

from gfcompile.geometry.channel_draws import Draw
from gfcompile.geometry.layouts import WeightLayout

At = tuple[Any, Any, Any, Any]


class _Packed:
    """Where the weights of a convolution lie: physical [Co/kb,kh,kw,Ci/g,kb], of a depthwise one [kh,kw,1,C]."""

    def __init__(self, shape: list[int], groups: int) -> None:
        layout = WeightLayout.for_conv(shape, groups)
        self.shape = layout.physical_shape
        self.block = self.shape[-1] if len(self.shape) == 5 else None

    def logical(self, at: tuple[Any, ...]) -> At:
        """(co, ci, u, v) of a place."""
        if self.block is None:
            u, v, ci, co = at
            return co, ci, u, v
        block, u, v, ci, lane = at
        return block * self.block + lane, ci, u, v

    def place(self, co: Any, ci: Any, u: Any, v: Any) -> tuple[Any, ...]:
        return (u, v, ci, co) if self.block is None else (co // self.block, u, v, ci, co % self.block)


def _source(draw: Draw, channels: Any, at: At) -> At:
    """Which weight the drawn one at (co, ci, u, v) is."""
    co, ci, u, v = at
    if draw.takes_groups:
        return _channel(channels, co, draw.group_inputs, draw.group_outputs), ci, u, v
    group = co // draw.group_outputs
    return co, channels[group * draw.chosen + ci] - group * draw.group_inputs, u, v


def _channel(channels: Any, number: Any, inputs: int, outputs: int) -> Any:
    """The channel that drawn channel `number` is; see gf.take_channels."""
    if (inputs, outputs) == (1, 1):
        return channels[number]
    return channels[number // outputs * inputs] // inputs * outputs + number % outputs


def take_channels(x: te.Tensor, channels: te.Tensor, inputs: int, outputs: int) -> te.Tensor:
    """x [N,H,W,C], channels [count] -> [N,H,W,drawn]."""
    drawn = int(channels.shape[0]) // inputs * outputs
    return te.compute(
        (*x.shape[:3], drawn),
        lambda n, h, w, c: x[n, h, w, _channel(channels, c, inputs, outputs)],
        name="take_channels",
    )


def take_weights(w: te.Tensor, channels: te.Tensor, shape: tuple[int, ...], groups: int) -> te.Tensor:
    """The packed weights that the drawn channels touch, packed."""
    draw = Draw.of(shape, groups, int(channels.shape[0]))
    whole, drawn = _Packed(list(shape), groups), _Packed(draw.drawn_shape(shape), draw.drawn_groups)
    return te.compute(
        drawn.shape,
        lambda *at: w[whole.place(*_source(draw, channels, drawn.logical(at)))],
        name="take_weights",
    )


def spread_weights(values: te.Tensor, channels: te.Tensor, shape: tuple[int, ...], groups: int) -> te.Tensor:
    """Packed weights, zero but for the drawn channels. Stage `slot` finds where each candidate was drawn, or -1."""
    draw = Draw.of(shape, groups, int(channels.shape[0]))
    whole, drawn = _Packed(list(shape), groups), _Packed(draw.drawn_shape(shape), draw.drawn_groups)
    width = draw.width
    number = te.reduce_axis((0, draw.count // width), "number")
    slot = te.compute(
        (draw.in_channels // width,),
        lambda candidate: te.max(
            tirx.Select(channels[number * width] == candidate * width, number, tirx.const(-1, "int32")), axis=number
        ),
        name="slot",
    )

    def value(*at: Any) -> Any:
        co, ci, u, v = whole.logical(at)
        group = co // draw.group_outputs
        if draw.takes_groups:
            found = slot[group]
            place = drawn.place(found * draw.group_outputs + co % draw.group_outputs, ci, u, v)
        else:
            found = slot[group * draw.group_inputs + ci]
            place = drawn.place(co, found - group * draw.chosen, u, v)
        return tirx.if_then_else(found >= 0, values[place], tirx.const(0, values.dtype))

    return te.compute(whole.shape, value, name="spread_weights")


def put_weights(shape: tuple[int, ...], groups: int, count: int) -> tirx.PrimFunc:
    """(w, values, channels [count]) -> w with the drawn weights replaced, all packed; comes scheduled.

    Only the drawn ones are written: the result must lie where w does. Weights are flat here: kernels get addresses.
    """
    draw = Draw.of(shape, groups, count)
    whole, drawn = _Packed(list(shape), groups), _Packed(draw.drawn_shape(shape), draw.drawn_groups)
    rows, lanes, total = prod(drawn.shape[:-1]), drawn.shape[-1], prod(whole.shape)

    def target(channels: Any, row: Any, lane: Any) -> Any:
        """Where the value of this row and lane goes."""
        at: list[Any] = [lane]
        for size in reversed(drawn.shape[:-1]):
            at.insert(0, row % size)
            row = row // size
        flat: Any = 0
        place = whole.place(*_source(draw, channels, drawn.logical(tuple(at))))
        for index, size in zip(place, whole.shape, strict=True):
            flat = flat * size + index
        return flat

    @T.prim_func(private=True, s_tir=True)
    def put_weights(
        w_handle: T.handle, values_handle: T.handle, channels_handle: T.handle, out_handle: T.handle
    ) -> None:
        T.func_attr({"tirx.noalias": True, "op_pattern": 8, "gf.scheduled": True})
        _w = T.match_buffer(w_handle, (total,), "float32")
        values = T.match_buffer(values_handle, (rows, lanes), "float32")
        channels = T.match_buffer(channels_handle, (count,), "int32")
        out = T.match_buffer(out_handle, (total,), "float32")
        for row in T.parallel(rows):
            for lane in range(lanes):
                with T.sblock("put"):
                    r, i = T.axis.remap("SS", [row, lane])
                    T.reads(values[r, i], channels[0:count])
                    T.writes(out[0:total])
                    out[target(channels, r, i)] = values[r, i]

    return put_weights
