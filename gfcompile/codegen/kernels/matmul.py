"""Matrix products that read a transposed operand where it lies."""

from typing import Any

from tvm import te


def matmul(a: te.Tensor, b: te.Tensor, a_turned: bool, b_turned: bool) -> te.Tensor:
    """a [M,K] (or [K,M] if turned) times b [K,N] (or [N,K] if turned) -> [M,N]."""
    rows, depth = (int(d) for d in (reversed(a.shape) if a_turned else a.shape))
    columns = int(b.shape[0 if b_turned else 1])
    k = te.reduce_axis((0, depth), "k")

    def product(i: Any, j: Any) -> Any:
        return te.sum((a[k, i] if a_turned else a[i, k]) * (b[j, k] if b_turned else b[k, j]), axis=[k])

    return te.compute((rows, columns), product, name="matmul")
