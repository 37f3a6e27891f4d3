"""Optimizer updates. Each element depends on its own old value only, so the driver runs them in place.

One stage for each tensor of the state, then the weight: run in place, a stage must find the old weight, and new state
that an earlier stage has stored. Each formula stands with its operator in ops/update.py.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import te, tirx

from gfcompile.ops.update import CLIP_EPS

_SERIES_BELOW = 0.5  # |x| under which 1 - exp(x) loses digits
_SERIES_TERMS = 9  # of exp(x) - 1: the rest is below 1e-9 of it there


def _read(g: te.Tensor, at: tuple[Any, ...]) -> Any:
    """The gradient of an element; axes along which all share one value have one entry."""
    return g[tuple(0 if int(size) == 1 else position for position, size in zip(at, g.shape, strict=True))]


def _decayed(w: te.Tensor, g: te.Tensor, at: tuple[Any, ...], weight_decay: float) -> Any:
    return _read(g, at) + weight_decay * w[at] if weight_decay else _read(g, at)


def sgd_update_plain(w: te.Tensor, g: te.Tensor, lr: te.Tensor, *, weight_decay: float, lr_factor: float) -> te.Tensor:
    """w', of w's shape."""
    return te.compute(
        w.shape,
        lambda *at: w[at] - lr[()] * lr_factor * _decayed(w, g, at, weight_decay),
        name="sgd_update_plain",
    )


def sgd_update(
    w: te.Tensor,
    v: te.Tensor,
    g: te.Tensor,
    lr: te.Tensor,
    gain: te.Tensor | None,
    *,
    momentum: float,
    weight_decay: float,
    nesterov: bool,
    lr_factor: float,
) -> tuple[te.Tensor, te.Tensor]:
    """(w', v'), shapes as w."""

    def velocity(*at: tirx.Var) -> Any:
        d = _decayed(w, g, at, weight_decay)
        return momentum * v[at] + (d if gain is None else gain[()] * d)

    new_v = te.compute(w.shape, velocity, name="sgd_velocity")

    def weight(*at: tirx.Var) -> Any:
        move = _decayed(w, g, at, weight_decay) + momentum * new_v[at] if nesterov else new_v[at]
        return w[at] - lr[()] * lr_factor * move

    return te.compute(w.shape, weight, name="sgd_update"), new_v


def sgd_gain(count: te.Tensor, dampening: float) -> te.Tensor:
    """A scalar."""
    return te.compute((), lambda: tirx.Select(count[()] == 1, 1.0, tirx.const(1 - dampening, count.dtype)), name="gain")


def adam_update(
    w: te.Tensor,
    state: list[te.Tensor],
    g: te.Tensor,
    lr: te.Tensor,
    correction1: te.Tensor,
    correction2: te.Tensor,
    *,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    decoupled: bool,
    lr_factor: float,
) -> tuple[te.Tensor, ...]:
    """(w', m', v') and, with a third state tensor, the largest v'; shapes as w."""
    m, v, *largest = state
    through_gradient = 0.0 if decoupled else weight_decay

    def mean(*at: tirx.Var) -> Any:
        return m[at] + (1 - beta1) * (_decayed(w, g, at, through_gradient) - m[at])

    def square(*at: tirx.Var) -> Any:
        d = _decayed(w, g, at, through_gradient)
        return beta2 * v[at] + (1 - beta2) * d * d

    new_m = te.compute(w.shape, mean, name="adam_mean")
    new_v = te.compute(w.shape, square, name="adam_square")
    new_largest = [_largest(old, new_v) for old in largest]
    scale = (new_largest or [new_v])[0]

    def weight(*at: tirx.Var) -> Any:
        rate = lr[()] * lr_factor
        kept = w[at] * (1 - rate * weight_decay) if decoupled and weight_decay else w[at]
        move = new_m[at] / (tirx.sqrt(scale[at]) / tirx.sqrt(correction2[()]) + eps)
        return kept - rate / correction1[()] * move

    return te.compute(w.shape, weight, name="adam_update"), new_m, new_v, *new_largest


def _largest(old: te.Tensor, new: te.Tensor) -> te.Tensor:
    return te.compute(old.shape, lambda *at: tirx.max(old[at], new[at]), name="adam_largest")


def bias_correction(count: te.Tensor, beta: float) -> te.Tensor:
    """A scalar. While count*log(beta) is small, by its series: the difference 1 - exp(x) would have lost its digits."""
    if beta == 0:
        return te.compute((), lambda: tirx.const(1.0, count.dtype), name="bias_correction")

    def correction() -> Any:
        x = count[()] * math.log(beta)
        series: Any = tirx.const(1.0, count.dtype)
        for term in range(_SERIES_TERMS, 1, -1):
            series = 1 + x * (1 / term) * series
        return tirx.Select(x > -_SERIES_BELOW, -x * series, 1 - tirx.exp(x))

    return te.compute((), correction, name="bias_correction")


def rmsprop_update(
    w: te.Tensor,
    state: list[te.Tensor],
    g: te.Tensor,
    lr: te.Tensor,
    *,
    alpha: float,
    eps: float,
    weight_decay: float,
    momentum: float,
    centered: bool,
    lr_factor: float,
) -> tuple[te.Tensor, ...]:
    """(w', s') with a' if centered and b' if there is momentum; shapes as w."""
    s, *rest = state

    def square(*at: tirx.Var) -> Any:
        d = _decayed(w, g, at, weight_decay)
        return alpha * s[at] + (1 - alpha) * d * d

    new = [te.compute(w.shape, square, name="rmsprop_square")]
    new_s = new[0]
    if centered:
        a = rest[0]

        def mean(*at: tirx.Var) -> Any:
            return a[at] + (1 - alpha) * (_decayed(w, g, at, weight_decay) - a[at])

        new.append(te.compute(w.shape, mean, name="rmsprop_mean"))

    def move(*at: tirx.Var) -> Any:
        variance = new_s[at]
        if centered:
            difference = variance - new[1][at] * new[1][at]
            variance = tirx.Select(difference < 0, tirx.const(0.0, w.dtype), difference)  # keeps a NaN
        return _decayed(w, g, at, weight_decay) / (tirx.sqrt(variance) + eps)

    moves: Any = move
    if momentum > 0:
        b = rest[-1]
        moves = te.compute(w.shape, lambda *at: momentum * b[at] + move(*at), name="rmsprop_move")
        new.append(moves)
    changed = te.compute(w.shape, lambda *at: w[at] - lr[()] * lr_factor * moves(*at), name="rmsprop_update")
    return changed, *new


def square_sum(g: te.Tensor, copies: int) -> te.Tensor:
    """A scalar, in one stage: TVM cannot cut a sum into parts that another scalar stage follows."""
    axes = [te.reduce_axis((0, size)) for size in g.shape]
    value = g[tuple(axes)]
    return te.compute((), lambda: te.sum(float(copies) * value * value, axis=axes), name="square_sum")


def clip_coefficient(square_sums: list[te.Tensor], limit: float) -> te.Tensor:
    """A scalar; as with torch's clamp, a NaN stays one."""

    def coefficient() -> Any:
        total = square_sums[0][()]
        for part in square_sums[1:]:
            total = total + part[()]
        wanted = limit / (tirx.sqrt(total) + CLIP_EPS)
        return tirx.Select(wanted > 1, tirx.const(1.0, square_sums[0].dtype), wanted)

    return te.compute((), coefficient, name="clip_coefficient")
