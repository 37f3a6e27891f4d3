"""Functions that were written with their loops: each turn of what they mark as parallel is a block of one thread."""

from __future__ import annotations

from tvm import tirx
from tvm_ffi import structural_map


def share_out(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Bind the parallel loops of a function that was written with its loops."""
    body = structural_map(function.body, (tirx.For, _bind), order="post")
    return tirx.PrimFunc(function.params, body, ret_type=function.ret_type, attrs=function.attrs)


def _bind(loop: tirx.For) -> tirx.For:
    if loop.kind != tirx.ForKind.PARALLEL:
        return loop
    block = tirx.IterVar(None, tirx.Var("blockIdx.x", loop.loop_var.ty), tirx.IterVar.ThreadIndex, "blockIdx.x")
    return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.THREAD_BINDING, loop.body, thread_binding=block)
