"""The memory of a step before any device is touched: what is kept and why, and beside it the peers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from gfcompile.report.kept import as_rows, kept_tensors
from gfcompile.step import Role

if TYPE_CHECKING:
    from gfcompile.codegen.driver import Planned
    from gfcompile.job import Analysis

FLOAT_BYTES = 4
WEIGHTS = (Role.PARAMETER, Role.BUFFER, Role.CONSTANT)


def make_memory(analysis: Analysis) -> dict[str, Any]:
    """The part of report.json's memory that needs the lowered programs."""
    state = _state_bytes(analysis)
    weights, optimizer = weight_and_optimizer_bytes(analysis)
    train = analysis.programs["train"]
    return {
        "saved_bytes": analysis.saved_bytes,
        "exact_saved_bytes": analysis.exact_saved_bytes,
        "arena_bytes": analysis.arena_bytes,
        "arena_bytes_by_program": {name: planned.placement.bytes for name, planned in analysis.programs.items()},
        "scratch_bytes_a_thread": analysis.scratch_bytes,
        "state_bytes": state,
        "totals": {
            "weights": weights,
            "optimizer_state": optimizer,
            "saved_activations": analysis.saved_bytes,
            "scratch": train.placement.bytes - analysis.saved_bytes,
        },
        "side_by_side": {
            name: {"saved_bytes": planned.program.saved_bytes, "arena_bytes": planned.placement.bytes}
            for name, planned in variants(analysis).items()
        },
        "saved": as_rows(kept_tensors(analysis.steps["train"])),
        "full_resolution_gradients": [
            {
                "node": found.node,
                "shape": list(found.shape),
                "bytes": math.prod(found.shape) * FLOAT_BYTES,
                "reason": found.reason,
            }
            for found in analysis.materialised
        ],
    }


def weight_and_optimizer_bytes(analysis: Analysis) -> tuple[int, int]:
    """What the library keeps beside the arena."""
    state = _state_bytes(analysis)
    return sum(state.get(str(role), 0) for role in WEIGHTS), state.get(str(Role.OPTIMIZER), 0)


def variants(analysis: Analysis) -> dict[str, Planned]:
    """The training programs to compare; `this_step` is the one that is built."""
    return {**analysis.comparisons, "this_step": analysis.programs["train"]}


def live_bytes(planned: Planned) -> list[int]:
    """Bytes of the arena in use at each call."""
    program, placement = planned.program, planned.placement
    last = program.last_reads()
    alive = [0] * len(program.calls)
    for start, call in enumerate(program.calls):
        for index in call.born:
            if index in placement.offsets:
                # what takes over its input's slot is counted with the input at its first call
                first = start + 1 if index in placement.shared else start
                for at in range(first, min(last[index] + 1, len(alive))):
                    alive[at] += program.buffers[index].bytes
    return alive


def _state_bytes(analysis: Analysis) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for entry in analysis.state.entries:
        sizes[str(entry.role)] = sizes.get(str(entry.role), 0) + entry.bytes
    return {**sizes, "total": sum(sizes.values())}
