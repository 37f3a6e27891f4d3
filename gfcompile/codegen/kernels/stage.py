"""Stages the kernels share: shifted, zero-extended, stride-spread copies of a map, and window arithmetic."""

from typing import Any

from tvm import te, tirx

Pair = tuple[int, int]


def out_extent(size: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """Rows of a convolution's output along one axis."""
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def pad(x: te.Tensor, origin: Pair, extent: Pair, spread: Pair = (1, 1), name: str = "pad") -> te.Tensor:
    """x [N,H,W,C] -> [N, *extent, C]: row h of x lands on row `h * spread + origin`, everything else is zero.

    A negative origin crops. Returns x itself where nothing would change.
    """
    n, h, w, c = (int(d) for d in x.shape)
    if origin == (0, 0) and extent == (h, w) and spread == (1, 1):
        return x

    def value(b: Any, i: Any, j: Any, ch: Any) -> Any:
        inside, index = [], []
        for pos, start, size, step, full in zip((i, j), origin, (h, w), spread, extent, strict=True):
            at = pos - start
            if start > 0:
                inside.append(at >= 0)
            if start + size * step < full:  # the rows after the last pixel and its gap
                inside.append(at < size * step)
            if step > 1:
                inside.append(tirx.floormod(at, step) == 0)
                at = tirx.floordiv(at, step)
            index.append(at)
        load = x[b, index[0], index[1], ch]
        return tirx.if_then_else(tirx.all(*inside), load, tirx.const(0, x.dtype)) if inside else load

    return te.compute((n, *extent, c), value, name=name)
