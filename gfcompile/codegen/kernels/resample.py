"""A sparse linear map along one axis: resizing, padding, and the ways back."""

from functools import reduce
from typing import Any

from tvm import te

MOST_UNROLLED = 8


def axis_map(x: te.Tensor, index: te.Tensor, weight: te.Tensor, axis: int, is_copy: bool) -> te.Tensor:
    """Element o of `axis` is the sum over k of weight[o, k] * x[index[o, k]]; a copy has one tap, of weight 1."""
    size, taps = (int(extent) for extent in index.shape)
    shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])

    def tap(at: tuple[Any, ...], k: Any) -> Any:
        value = x[(*at[:axis], index[at[axis], k], *at[axis + 1 :])]
        return value if is_copy else weight[at[axis], k] * value

    if taps <= MOST_UNROLLED:
        return te.compute(
            shape, lambda *at: reduce(lambda a, b: a + b, [tap(at, k) for k in range(taps)]), name="axis_map"
        )
    k = te.reduce_axis((0, taps), "k")
    return te.compute(shape, lambda *at: te.sum(tap(at, k), axis=[k]), name="axis_map")
