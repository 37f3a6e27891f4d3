"""What a step takes on a board that is not at hand: a roofline, from published figures. Never a measurement.

A kernel call takes its arithmetic at the machine's peak, or its operands once through memory at the full bandwidth: the
larger of the two, summed over the calls of a training step. Real code reaches neither limit; only a kernel that finds
its operands in a cache can be faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from gfcompile.graph.ownership import module_of
from gfcompile.report.machine_schema import Estimate, EstimateRow, NoEstimate
from gfcompile.report.numbers_are import ESTIMATED
from gfcompile.report.units import in_flops

if TYPE_CHECKING:
    from gfcompile.codegen.program import Call, Program
    from gfcompile.job import Analysis
    from gfcompile.step import Step
    from gfcompile.targets import Figure, Machine

ROWS = 8
COLUMNS = ("layer", "pass", "FLOPs", "share", "limited by")
WORDS = {
    "peak_gflops": "{:g} GFLOP/s float32 at most",
    "bandwidth_gbs": "{:g} GB/s of memory bandwidth",
    "memory_gib": "{:g} GiB of memory",
    "watts": "{:g} W",
}


@dataclass(frozen=True)
class Cost:
    """One kernel call, counted."""

    layer: str  # the layer whose weights it reads, or what it does
    backward: bool
    flops: float
    bytes: int


def make_estimate(analysis: Analysis) -> Estimate | NoEstimate:
    """What the training step takes on its target, and the layers that dominate."""
    target = analysis.scheduler.target
    machine = target.machine
    if machine.peak_gflops is None or machine.bandwidth_gbs is None:
        reason = f"target '{target.name}' has no published peak and bandwidth in its file"
        return NoEstimate(target=target.name, none=reason)
    costs = count_costs(analysis.programs["train"].program, analysis.steps["train"])
    rows = _by_layer(costs, machine.peak_gflops, machine.bandwidth_gbs)
    seconds = sum(row.seconds for row in rows)
    return Estimate(
        target=target.name,
        seconds_a_step=seconds,
        joules_a_step=seconds * machine.watts.value if machine.watts is not None else None,
        flops=sum(cost.flops for cost in costs),
        bytes=sum(cost.bytes for cost in costs),
        layers=tuple(rows),
        figures=machine,
    )


def count_costs(program: Program, step: Step) -> list[Cost]:
    """Arithmetic and operands of every call; a Winograd convolution counts as what it computes, not its plain sum."""
    import tvm
    from tvm.s_tir.analysis import estimate_tir_flops

    flops = {
        name: float(estimate_tir_flops(tvm.IRModule({"main": function})))
        for name, function in program.functions.items()
    }
    loss = program.loss_call()
    return [
        Cost(_layer(call, program, step), index > loss, flops[call.kernel], _bytes(call, program))
        for index, call in enumerate(program.calls)
    ]


def _layer(call: Call, program: Program, step: Step) -> str:
    buffers = sorted((program.buffers[index] for index in call.inputs), key=lambda buffer: -buffer.bytes)
    names = [step.origin(buffer.value) for buffer in buffers if buffer.value is not None]
    found = next(filter(None, names), None)
    return module_of(found) if found else call.kernel.rstrip("0123456789").removeprefix("fused_")


def _bytes(call: Call, program: Program) -> int:
    return sum(program.buffers[index].bytes for index in (*dict.fromkeys(call.inputs), *call.outputs))


def _by_layer(costs: Sequence[Cost], peak_gflops: Figure, bandwidth_gbs: Figure) -> list[EstimateRow]:
    """Calls of one layer and pass together, the slowest first."""
    groups: dict[tuple[str, bool], list[Cost]] = {}
    for cost in costs:
        groups.setdefault((cost.layer, cost.backward), []).append(cost)
    rows = []
    for (layer, backward), calls in groups.items():
        times = [(cost.flops / (peak_gflops.value * 1e9), cost.bytes / (bandwidth_gbs.value * 1e9)) for cost in calls]
        row = EstimateRow(
            layer=layer,
            pass_="backward" if backward else "forward",
            flops=sum(cost.flops for cost in calls),
            bytes=sum(cost.bytes for cost in calls),
            seconds=sum(max(time) for time in times),
            seconds_of_memory=sum(memory if memory > arithmetic else 0.0 for arithmetic, memory in times),
        )
        rows.append(row)
    return sorted(rows, key=lambda row: -row.seconds)


def estimate_line(estimate: Estimate | NoEstimate) -> str:
    """One line for a terminal."""
    if isinstance(estimate, NoEstimate):
        return f"{ESTIMATED}: none, {estimate.none}"
    joules = estimate.joules_a_step
    energy = f", {_short(joules)}J" if joules is not None else ""
    slowest = ", ".join(f"{row.layer} {row.pass_} {_share(row, estimate)}" for row in estimate.layers[:3])
    time = f"about {_short(estimate.seconds_a_step)}s{energy} per step on {estimate.target}"
    return f"{ESTIMATED}: {time}; most in {slowest}"


def estimate_rows(estimate: Estimate) -> list[tuple[str, ...]]:
    """The layers that dominate."""
    return [
        (
            row.layer,
            row.pass_,
            in_flops(int(row.flops)),
            _share(row, estimate),
            "memory" if row.seconds_of_memory > row.seconds / 2 else "arithmetic",
        )
        for row in estimate.layers[:ROWS]
    ]


def source_lines(machine: Machine) -> list[str]:
    """Where each figure comes from."""
    figures = {each.name: getattr(machine, each.name) for each in fields(machine)}
    return [f"{WORDS[name].format(each.value)}: {each.source}" for name, each in figures.items() if each is not None]


def _share(row: EstimateRow, estimate: Estimate) -> str:
    return f"{100 * row.seconds / estimate.seconds_a_step:.0f} %"


def _short(value: float) -> str:
    """0.0213 -> "21 m": two digits, with the unit's prefix."""
    for prefix, scale in (("", 1.0), ("m", 1e-3), ("µ", 1e-6)):
        if value >= scale:
            return f"{float(f'{value / scale:.2g}'):g} {prefix}"
    return f"{value:.1g} "
