"""How much scratch memory a scheduled kernel asks of the runtime."""

from __future__ import annotations

from math import prod

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.stmt import SBlock
from tvm_ffi import structural_walk

_ALIGNMENT = 64
_COMPACT = tvm.transform.Sequential(
    [
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.CompactBufferAllocation(),
    ]
)


def workspace_bytes(func: tirx.PrimFunc) -> int:
    """Upper bound of the bytes one thread holds at one time: all allocations, 64-byte rounded.

    Register tiles count too: LLVM keeps small ones on the stack, and which those are is its business.
    """
    compact = _COMPACT(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))["main"]
    blocks: list[SBlock] = []
    structural_walk(compact.body, [(SBlock, blocks.append)])
    total = 0
    for block in blocks:
        for buffer in block.alloc_buffers:
            size = prod(int(d) for d in buffer.shape) * ((tvm.runtime.DataType(buffer.dtype).bits + 7) // 8)
            total += -(-size // _ALIGNMENT) * _ALIGNMENT
    return total
