"""Values put where indices of the batch say. Each row is one thread's, in order, so equal indices do not race."""

from tvm import tirx
from tvm.script import tirx as T


def put(rows: int, size: int, count: int, dtype: str, accumulate: bool) -> tirx.PrimFunc:
    """(base [rows,size], index [rows,count], values [rows,count]) -> [rows,size]; comes scheduled."""

    @T.prim_func(private=True, s_tir=True)
    def put(base_handle: T.handle, index_handle: T.handle, values_handle: T.handle, out_handle: T.handle) -> None:
        T.func_attr({"tirx.noalias": True, "op_pattern": 8, "gf.scheduled": True})
        base = T.match_buffer(base_handle, (rows, size), dtype)
        index = T.match_buffer(index_handle, (rows, count), "int64")
        values = T.match_buffer(values_handle, (rows, count), dtype)
        out = T.match_buffer(out_handle, (rows, size), dtype)
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
