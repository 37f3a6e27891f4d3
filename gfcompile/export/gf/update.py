"""Optimizer updates, as `ops.update` defines them. A gradient that is one value for all taps of a kernel broadcasts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from gfcompile.export.emitter import Emitter, Operand, Value
from gfcompile.export.table import Result, Table
from gfcompile.ops import gf
from gfcompile.ops.update import CLIP_EPS

TABLE = Table()


class _Arithmetic:
    """Float arithmetic that reads like the formulas."""

    def __init__(self, to: Emitter) -> None:
        self.to = to

    def number(self, value: float) -> str:
        return self.to.scalar(value, torch.float32)

    def times(self, factor: float, value: Operand) -> str:
        return self.to.op("Mul", value, self.number(factor))

    def sum(self, *values: Operand) -> str:
        return self.to.op("Sum", *values)

    def with_decay(self, g: Value, weight_decay: float, w: Value) -> str:
        return self.sum(g, self.times(weight_decay, w)) if weight_decay else g.name

    def towards(self, old: Value, goal: str, part: float) -> str:
        """old + part*(goal - old)"""
        return self.sum(old, self.times(part, self.to.op("Sub", goal, old)))

    def follow_square(self, old: Value, beta: float, value: str) -> str:
        """beta*old + (1 - beta)*value^2"""
        return self.sum(self.times(beta, old), self.times(1 - beta, self.to.op("Mul", value, value)))

    def descend(self, w: Operand, rate: str, move: str) -> str:
        return self.to.op("Sub", w, self.to.op("Mul", rate, move))


@TABLE.writes(gf.sgd_update_plain.default)
def _sgd_plain(to: Emitter, out: Value, w: Value, g: Value, lr: Value, weight_decay: float, lr_factor: float) -> str:
    do = _Arithmetic(to)
    return do.descend(w, do.times(lr_factor, lr), do.with_decay(g, weight_decay, w))


@TABLE.writes(gf.sgd_update.default)
def _sgd(
    to: Emitter,
    out: tuple[Value, ...],
    w: Value,
    v: Value,
    g: Value,
    lr: Value,
    gain: Value | None,
    momentum: float,
    weight_decay: float,
    nesterov: bool,
    lr_factor: float,
) -> Result:
    do = _Arithmetic(to)
    d = do.with_decay(g, weight_decay, w)
    velocity = do.sum(do.times(momentum, v), d if gain is None else to.op("Mul", gain, d))
    move = do.sum(d, do.times(momentum, velocity)) if nesterov else velocity
    return do.descend(w, do.times(lr_factor, lr), move), velocity


@TABLE.writes(gf.sgd_gain.default)
def _sgd_gain(to: Emitter, out: Value, count: Value, dampening: float) -> str:
    do = _Arithmetic(to)
    return to.op("Where", to.op("Equal", count, do.number(1)), do.number(1), do.number(1 - dampening))


@TABLE.writes(gf.adam_update.default)
def _adam(
    to: Emitter,
    out: tuple[Value, ...],
    w: Value,
    state: Sequence[Value],
    g: Value,
    lr: Value,
    correction1: Value,
    correction2: Value,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    decoupled: bool,
    lr_factor: float,
) -> Result:
    do = _Arithmetic(to)
    m, v, *largest = state
    rate = do.times(lr_factor, lr)
    d = g.name if decoupled else do.with_decay(g, weight_decay, w)
    new_m, new_v = do.towards(m, d, 1 - beta1), do.follow_square(v, beta2, d)
    new_largest = [to.op("Max", old, new_v) for old in largest]
    root = to.op("Div", to.op("Sqrt", (new_largest or [new_v])[0]), to.op("Sqrt", correction2))
    move = to.op("Div", new_m, do.sum(root, do.number(eps)))
    kept = to.op("Sub", w, to.op("Mul", do.times(weight_decay, rate), w)) if decoupled else w.name
    return do.descend(kept, to.op("Div", rate, correction1), move), new_m, new_v, *new_largest


@TABLE.writes(gf.bias_correction.default)
def _bias_correction(to: Emitter, out: Value, count: Value, beta: float) -> str:
    """1 - beta^count as -expm1(count*log(beta)); ONNX has no expm1, but tanh: expm1(2t) = 2*tanh(t)/(1 - tanh(t))."""
    do = _Arithmetic(to)
    if not beta:
        return to.filled(count.shape, 1, torch.float32)
    half = to.op("Tanh", do.times(math.log(beta) / 2, count))
    return to.op("Div", do.times(-2, half), to.op("Sub", do.number(1), half))


@TABLE.writes(gf.rmsprop_update.default)
def _rmsprop(
    to: Emitter,
    out: tuple[Value, ...],
    w: Value,
    state: Sequence[Value],
    g: Value,
    lr: Value,
    alpha: float,
    eps: float,
    weight_decay: float,
    momentum: float,
    centered: bool,
    lr_factor: float,
) -> Result:
    do = _Arithmetic(to)
    s, *rest = state
    d = do.with_decay(g, weight_decay, w)
    new = [do.follow_square(s, alpha, d)]
    variance = new[0]
    if centered:
        new.append(do.towards(rest[0], d, 1 - alpha))
        spread = to.op("Sub", new[0], to.op("Mul", new[1], new[1]))
        variance = to.op("Max", spread, do.number(0))
    move = to.op("Div", d, do.sum(to.op("Sqrt", variance), do.number(eps)))
    if momentum > 0:
        move = do.sum(do.times(momentum, rest[-1]), move)
        new.append(move)
    return do.descend(w, do.times(lr_factor, lr), move), *new


@TABLE.writes(gf.square_sum.default)
def _square_sum(to: Emitter, out: Value, g: Value, copies: int) -> str:
    squares = to.op("ReduceSumSquare", g, keepdims=0)
    return _Arithmetic(to).times(copies, squares)


@TABLE.writes(gf.clip_coefficient.default)
def _clip_coefficient(to: Emitter, out: Value, square_sums: Sequence[Value], limit: float) -> str:
    do = _Arithmetic(to)
    norm = to.op("Sqrt", do.sum(*square_sums))
    return to.op("Min", to.op("Div", do.number(limit), do.sum(norm, do.number(CLIP_EPS))), do.number(1))
