"""Patch kernels: sums, means and broadcasts over windows, and the channel mix of the filtered backward pass.

An axis of windows is five ints `(n, pitch, origin, lo, hi)`: patch P covers the rows
[P * pitch + origin, (P + 1) * pitch + origin) that lie in [lo, hi).
"""

from collections.abc import Callable
from typing import Any

from tvm import te, tirx

Axis = tuple[int, int, int, int, int]


def _bounds(axis: Axis, size: int) -> tuple[int, int]:
    _, _, _, lo, hi = axis
    return max(lo, 0), min(hi, size)


def window_sum(
    load: Callable[..., Any], shape: tuple[int, int, int, int], rows: Axis, cols: Axis, dtype: str, name: str
) -> te.Tensor:
    """[N,n_h,n_w,C]: the sum over each window of `load(n, row, col, channel)`, an image of `shape`."""
    n, h, w, c = shape
    ry, rx = te.reduce_axis((0, rows[1]), "ry"), te.reduce_axis((0, cols[1]), "rx")

    def value(b: Any, p: Any, q: Any, ch: Any) -> Any:
        inside, index = [], []
        for patch, r, axis, size in ((p, ry, rows, h), (q, rx, cols, w)):
            (count, pitch, origin, _, _), (lo, hi) = axis, _bounds(axis, size)
            at = patch * pitch + origin + r
            if origin < lo:
                inside.append(at >= lo)
            if count * pitch + origin > hi:
                inside.append(at < hi)
            index.append(at)
        held = load(b, index[0], index[1], ch)
        return te.sum(
            tirx.if_then_else(tirx.all(*inside), held, tirx.const(0, dtype)) if inside else held, axis=[ry, rx]
        )

    return te.compute((n, rows[0], cols[0], c), value, name=name)


def patch_sum(x: te.Tensor, rows: Axis, cols: Axis) -> te.Tensor:
    """x [N,H,W,C] -> [N,n_h,n_w,C]: the sum over each window."""
    n, h, w, c = (int(d) for d in x.shape)
    return window_sum(lambda *at: x[at], (n, h, w, c), rows, cols, "float32", "patch_sum")


def patch_mean(x: te.Tensor, rows: Axis, cols: Axis) -> te.Tensor:
    """x [N,H,W,C] -> [N,n_h,n_w,C]: the mean over each window's real pixels, zero where a window has none."""
    _, h, w, _ = (int(d) for d in x.shape)
    total = patch_sum(x, rows, cols)
    real_rows, real_cols = (*rows[:3], *_bounds(rows, h)), (*cols[:3], *_bounds(cols, w))

    def value(b: Any, p: Any, q: Any, ch: Any) -> Any:
        count = patch_count(p, real_rows) * patch_count(q, real_cols)
        return tirx.if_then_else(count > 0, total[b, p, q, ch] / tirx.max(count, 1).astype("float32"), 0.0)

    return te.compute(total.shape, value, name="patch_mean")


def patch_count(patch: Any, axis: Axis) -> Any:
    """Real rows in a patch: a constant where every patch is whole."""
    n, pitch, origin, lo, hi = axis
    if origin >= lo and n * pitch + origin <= hi:
        return tirx.const(pitch, "int32")
    start = patch * pitch + origin
    return tirx.max(tirx.min(start + pitch, hi) - tirx.max(start, lo), 0)


def patch_broadcast(q: te.Tensor, rows: Axis, cols: Axis, hw: tuple[int, int]) -> te.Tensor:
    """q [N,n_h,n_w,C] -> [N,H,W,C]: each patch's value over its window, zero where no window covers."""
    n, _, _, c = (int(d) for d in q.shape)

    def value(b: Any, i: Any, j: Any, ch: Any) -> Any:
        inside, index = [], []
        for pos, axis, size in ((i, rows, hw[0]), (j, cols, hw[1])):
            count, pitch, origin, _, _ = axis
            lo, hi = _bounds(axis, size)
            lo, hi = max(lo, origin), min(hi, count * pitch + origin)
            if lo > 0:
                inside.append(pos >= lo)
            if hi < size:
                inside.append(pos < hi)
            index.append((pos - origin) // pitch)
        load = q[b, index[0], index[1], ch]
        return tirx.if_then_else(tirx.all(*inside), load, 0.0) if inside else load

    return te.compute((n, *hw, c), value, name="patch_broadcast")
