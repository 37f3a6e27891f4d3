"""How much memory beside its operands a scheduled kernel asks of the runtime."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.stmt import SBlock
from tvm_ffi import structural_walk

_ALIGNMENT = 64
COMPACT = tvm.transform.Sequential(
    [
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.CompactBufferAllocation(),
    ]
)


@dataclass(frozen=True)
class Workspace:
    """Upper bounds in bytes: `shared` of all threads at once, outside parallel loops, and of `each` thread inside."""

    shared: int
    each: int


def find_workspace(func: tirx.PrimFunc) -> Workspace:
    """All allocations, 64-byte rounded.

    Register tiles count too: LLVM keeps small ones on the stack, and which those are is its business.
    """
    compact = COMPACT(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))["main"]
    loops: list[tirx.For] = []
    structural_walk(compact.body, [(tirx.For, loops.append)])
    each = sum(_allocated(loop.body) for loop in loops if _is_shared_out(loop))
    return Workspace(_allocated(compact.body) - each, each)


def _is_shared_out(loop: tirx.For) -> bool:
    """Of one turn, a parallel loop is no loop any more when LLVM sees it."""
    return loop.kind == tirx.ForKind.PARALLEL and int(loop.extent) > 1


def _allocated(body: Any) -> int:
    blocks: list[SBlock] = []
    structural_walk(body, [(SBlock, blocks.append)])
    total = 0
    for block in blocks:
        for buffer in block.alloc_buffers:
            values = int(buffer.strides[0]) * int(buffer.shape[0]) if buffer.strides else prod(map(int, buffer.shape))
            size = values * ((tvm.runtime.DataType(buffer.dtype).bits + 7) // 8)
            total += -(-size // _ALIGNMENT) * _ALIGNMENT
    return total
