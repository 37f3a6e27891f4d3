"""Values put where indices of the batch say. Each row is one thread's, in order, so equal indices do not race."""

from tvm import tirx
from tvm.script import tirx as T


def put(rows: int, size: int, count: int, dtype: str, accumulate: bool) -> tirx.PrimFunc:
    """(base [rows,size], index [rows,count], values [rows,count]) -> [rows,size]; comes scheduled."""

    @T.prim_func(private=True, s_tir=True)
    def put(
        base: T.Buffer((rows, size), dtype),
        index: T.Buffer((rows, count), "int64"),
        values: T.Buffer((rows, count), dtype),
        out: T.Buffer((rows, size), dtype),
    ):
        T.func_attr({"tirx.noalias": True, "op_pattern": 8, "gf.scheduled": True})
        for row in T.parallel(rows):
            for position in range(size):
                with T.sblock("copy"):
                    r, p = T.axis.remap("SS", [row, position])
                    T.reads(base[r, p])
                    T.writes(out[r, p])
                    out[r, p] = base[r, p]
            for number in range(count):
                with T.sblock("put"):
                    r, i = T.axis.remap("SR", [row, number])
                    T.reads(index[r, i], values[r, i], out[r, 0:size])
                    T.writes(out[r, 0:size])
                    if accumulate:
                        out[r, index[r, i]] = out[r, index[r, i]] + values[r, i]
                    else:
                        out[r, index[r, i]] = values[r, i]

    return put
