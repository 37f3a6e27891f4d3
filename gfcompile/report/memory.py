"""The memory of a step before any device is touched: what is kept and why, and beside it the peers."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING

from gfcompile.plan import Plan
from gfcompile.report.counts import conv_input_bytes
from gfcompile.report.kept import kept_tensors
from gfcompile.report.memory_schema import ConvInputs, FullGradient, Memory, MemoryTotals, SideBySide, Variant
from gfcompile.step import Role

if TYPE_CHECKING:
    from gfcompile.codegen.driver import Planned
    from gfcompile.job import Analysis

FLOAT_BYTES = 4
WEIGHTS = (Role.PARAMETER, Role.BUFFER, Role.CONSTANT)


def count_conv_inputs(plan: Plan, refused: Collection[str]) -> ConvInputs:
    """A refused layer keeps its input whole."""
    exact, filtered = conv_input_bytes(
        (layer.geometry, None if layer.name in refused else layer.r, layer.channels)
        for layer in plan.trained
        if layer.geometry is not None
    )
    return ConvInputs(exact_bytes=exact, filtered_bytes=filtered)


def make_memory(analysis: Analysis) -> Memory:
    """The memory plan of the lowered programs."""
    weights, optimizer = weight_and_optimizer_bytes(analysis)
    train = analysis.programs["train"]
    beside = {
        name: Variant(saved_bytes=planned.program.saved_bytes, arena_bytes=planned.placement.bytes)
        for name, planned in variants(analysis).items()
    }
    return Memory(
        conv_inputs=count_conv_inputs(analysis.plan, {refusal.layer for refusal in analysis.refusals}),
        saved_bytes=analysis.saved_bytes,
        exact_saved_bytes=analysis.exact_saved_bytes,
        arena_bytes=analysis.arena_bytes,
        arena_bytes_by_program={name: planned.placement.bytes for name, planned in analysis.programs.items()},
        scratch_bytes_a_thread=analysis.scratch_bytes,
        state_bytes=_state_bytes(analysis),
        totals=MemoryTotals(
            weights=weights,
            optimizer_state=optimizer,
            saved_activations=analysis.saved_bytes,
            scratch=train.placement.bytes - analysis.saved_bytes,
        ),
        side_by_side=SideBySide(**beside),
        saved=tuple(kept_tensors(analysis.steps["train"])),
        full_resolution_gradients=tuple(
            FullGradient(
                node=found.node,
                shape=tuple(found.shape),
                bytes=math.prod(found.shape) * FLOAT_BYTES,
                reason=found.reason,
            )
            for found in analysis.materialised
        ),
    )


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
