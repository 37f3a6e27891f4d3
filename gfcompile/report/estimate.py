"""What a step takes on a board that is not at hand: a roofline, from published figures. Never a measurement.

A kernel call takes its arithmetic at the machine's peak, or its operands once through memory at the full bandwidth: the
larger of the two, summed over the calls of a training step. Real code reaches neither limit; only a kernel that finds
its operands in a cache can be faster.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from gfcompile.graph.ownership import module_of
from gfcompile.report.units import in_flops

if TYPE_CHECKING:
    from gfcompile.codegen.program import Call, Program
    from gfcompile.job import Analysis
    from gfcompile.step import Step
    from gfcompile.targets import Machine

KIND = "estimate (roofline, no measurement)"
ROWS = 8
COLUMNS = ("layer", "pass", "FLOPs", "share", "limited by")


@dataclass(frozen=True)
class Cost:
    """One kernel call, counted."""

    layer: str  # the layer whose weights it reads, or what it does
    backward: bool
    flops: float
    bytes: int


def make_estimate(analysis: Analysis) -> dict[str, Any]:
    """For report.json: what the training step takes on its target, and the layers that dominate."""
    target = analysis.scheduler.target
    head = {"numbers_are": KIND, "target": target.name}
    machine = target.machine
    if machine.peak_gflops is None or machine.bandwidth_gbs is None:
        return {**head, "none": f"target '{target.name}' has no published peak and bandwidth in its file"}
    costs = count_costs(analysis.programs["train"].program, analysis.steps["train"])
    rows = _by_layer(costs, machine)
    seconds = sum(row["seconds"] for row in rows)
    return {
        **head,
        "seconds_a_step": seconds,
        "joules_a_step": seconds * machine.watts.value if machine.watts is not None else None,
        "flops": sum(cost.flops for cost in costs),
        "bytes": sum(cost.bytes for cost in costs),
        "layers": rows,
        "figures": {name: figure for name, figure in asdict(machine).items() if figure is not None},
    }


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


def _by_layer(costs: list[Cost], machine: Machine) -> list[dict[str, Any]]:
    """Calls of one layer and pass together, the slowest first."""
    assert machine.peak_gflops is not None
    assert machine.bandwidth_gbs is not None
    rows: dict[tuple[str, bool], dict[str, Any]] = {}
    for cost in costs:
        row = rows.setdefault(
            (cost.layer, cost.backward),
            {
                "layer": cost.layer,
                "pass": "backward" if cost.backward else "forward",
                "flops": 0.0,
                "bytes": 0,
                "seconds": 0.0,
                "seconds_of_memory": 0.0,
            },
        )
        arithmetic = cost.flops / (machine.peak_gflops.value * 1e9)
        memory = cost.bytes / (machine.bandwidth_gbs.value * 1e9)
        row["flops"] += cost.flops
        row["bytes"] += cost.bytes
        row["seconds"] += max(arithmetic, memory)
        row["seconds_of_memory"] += memory if memory > arithmetic else 0.0
    return sorted(rows.values(), key=lambda row: -row["seconds"])


def estimate_line(estimate: dict[str, Any]) -> str:
    """One line for a terminal."""
    if "none" in estimate:
        return f"{KIND}: none, {estimate['none']}"
    joules = estimate["joules_a_step"]
    energy = f", {_short(joules)}J" if joules is not None else ""
    slowest = ", ".join(f"{row['layer']} {row['pass']} {_share(row, estimate)}" for row in estimate["layers"][:3])
    time = f"about {_short(estimate['seconds_a_step'])}s{energy} a step on {estimate['target']}"
    return f"{KIND}: {time}; most in {slowest}"


def estimate_rows(estimate: dict[str, Any]) -> list[tuple[str, ...]]:
    """The layers that dominate."""
    return [
        (
            row["layer"],
            row["pass"],
            in_flops(int(row["flops"])),
            _share(row, estimate),
            "memory" if row["seconds_of_memory"] > row["seconds"] / 2 else "arithmetic",
        )
        for row in estimate["layers"][:ROWS]
    ]


def source_lines(estimate: dict[str, Any]) -> list[str]:
    """Where each figure comes from."""
    words = {
        "peak_gflops": "{:g} GFLOP/s float32 at most",
        "bandwidth_gbs": "{:g} GB/s of memory bandwidth",
        "memory_gib": "{:g} GiB of memory",
        "watts": "{:g} W",
    }
    return [f"{words[name].format(each['value'])}: {each['source']}" for name, each in estimate["figures"].items()]


def _share(row: dict[str, Any], estimate: dict[str, Any]) -> str:
    return f"{100 * row['seconds'] / estimate['seconds_a_step']:.0f} %"


def _short(value: float) -> str:
    """0.0213 -> "21 m": two digits, with the unit's prefix."""
    for prefix, scale in (("", 1.0), ("m", 1e-3), ("µ", 1e-6)):
        if value >= scale:
            return f"{float(f'{value / scale:.2g}'):g} {prefix}"
    return f"{value:.1g} "
