"""Place every temporary at a fixed offset of one arena, for the whole program, before it runs."""

from __future__ import annotations

from dataclasses import dataclass

from gfcompile.codegen.program import Program, in_place_inputs

ALIGNMENT = 64


@dataclass(frozen=True)
class Placement:
    """`offsets` by buffer, `overwrites` maps an updated result to the state buffer it replaces; `bytes` is the peak."""

    offsets: dict[int, int]
    overwrites: dict[int, int]
    bytes: int


def plan_arena(program: Program) -> Placement:
    """Best fit by size: the largest buffers choose first, each the lowest gap free over its whole life."""
    overwrites = {
        output: call.inputs[position]
        for call in program.calls
        for output, position in zip(call.outputs, in_place_inputs(call, program.buffers), strict=False)
    }
    last = program.last_reads()
    lives: dict[int, tuple[int, int]] = {}
    for index, call in enumerate(program.calls):
        for buffer in call.outputs:
            if buffer not in overwrites:
                lives[buffer] = (index, last[buffer])
    offsets: dict[int, int] = {}
    peak = 0
    for buffer in sorted(lives, key=lambda b: (-program.buffers[b].bytes, lives[b])):
        size = _aligned(program.buffers[buffer].bytes)
        start, stop = lives[buffer]
        taken = sorted(
            (offsets[other], offsets[other] + _aligned(program.buffers[other].bytes))
            for other in offsets
            if lives[other][0] <= stop and start <= lives[other][1]
        )
        offset = 0
        for low, high in taken:
            if offset + size <= low:
                break
            offset = max(offset, high)
        offsets[buffer] = offset
        peak = max(peak, offset + size)
    return Placement(offsets, overwrites, peak)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
