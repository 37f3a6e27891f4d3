"""Optimizer updates. Each element depends on its own old value only, so the driver runs them in place."""

from __future__ import annotations

from typing import Any

from tvm import te


def _read(g: te.Tensor, at: tuple[Any, ...]) -> Any:
    """The gradient of an element; axes along which all share one value have one entry."""
    return g[tuple(0 if int(size) == 1 else position for position, size in zip(at, g.shape, strict=True))]


def sgd_update(
    w: te.Tensor, v: te.Tensor, g: te.Tensor, lr: te.Tensor, momentum: float, weight_decay: float
) -> tuple[te.Tensor, te.Tensor]:
    """v' = momentum*v + g + weight_decay*w;  w' = w - lr*v'. Returns (w', v'), shapes as w."""
    # Two stages, velocity first: run in place, a stage that recomputed v' after w' was stored would read the new w.
    new_v = te.compute(
        w.shape, lambda *at: momentum * v[at] + (_read(g, at) + weight_decay * w[at]), name="sgd_velocity"
    )
    new_w = te.compute(w.shape, lambda *at: w[at] - lr[()] * new_v[at], name="sgd_update")
    return new_w, new_v


def sgd_update_plain(w: te.Tensor, g: te.Tensor, lr: te.Tensor, weight_decay: float) -> te.Tensor:
    """w' = w - lr*(g + weight_decay*w)."""
    return te.compute(
        w.shape, lambda *at: w[at] - lr[()] * (_read(g, at) + weight_decay * w[at]), name="sgd_update_plain"
    )
