"""Where a step's time goes, kernel by kernel, against what the machine could do.

    python -m benchmarks.profile [--model resnet18] [--batch 8] [--layers 4] [--r 2] [--exact] [--top 30]

A kernel's limit is the longer of its multiply-adds at the measured peak rate and of its operands, read and written
once, at the measured bandwidth.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tvm
from tvm import tirx
from tvm.s_tir import Schedule

import gfcompile
from benchmarks.machine import Limits, measure_limits
from benchmarks.models import MODELS, choose, make_task
from benchmarks.peers import LEARNING_RATE, MOMENTUM, WEIGHT_DECAY
from benchmarks.step_time import Setting
from gfcompile.codegen.schedules.blocks import list_blocks
from gfcompile.frontend.losses import resolve_loss
from gfcompile.job import Analysis, Job
from gfcompile.settings.schema import Request
from gfcompile.stages import analyse
from gfcompile.tuning.in_step import TimedStep

WARM_UP, STEPS = 3, 10


@dataclass(frozen=True)
class Row:
    """One kernel call of the step."""

    kernel: str
    seconds: float
    flops: int
    bytes: int

    def limit(self, limits: Limits) -> float:
        return limits.seconds(self.flops, self.bytes)


def count_flops(function: tirx.PrimFunc) -> int:
    """Two for every point of a sum of products, one for every point of any other stage."""
    blocks = list_blocks(Schedule(tvm.IRModule({"main": function.with_attr("global_symbol", "main")})))
    return sum(block.work * (2 if block.factors is not None else 1) for block in blocks)


def profile(analysis: Analysis, x: np.ndarray, labels: np.ndarray) -> list[Row]:
    """The training program's calls in order, with the median time of each."""
    with tempfile.TemporaryDirectory() as scratch:
        step = TimedStep(analysis, Path(scratch) / "profiled_step")
        turns = [step.train((x,), labels) for _ in range(WARM_UP + STEPS)][WARM_UP:]
        spent = np.median(turns, axis=0)
    program = step.program
    return [
        Row(
            call.kernel,
            seconds,
            count_flops(program.functions[call.kernel]),
            sum(program.buffers[index].bytes for index in {*call.inputs, *call.outputs}),
        )
        for call, seconds in zip(program.calls, spent, strict=True)
    ]


def profile_model(setting: Setting, exact: bool = False) -> tuple[list[Row], Limits]:
    """The step that `step_time` measures; the limits are those of the same minute."""
    chosen = choose(setting.model, setting.size, setting.layers, setting.r)
    task = make_task(setting.model, setting.batch, setting.size, setting.r, chosen)
    request = Request(layers=setting.layers, r={"*": setting.r}, exact=exact)
    optimizer = gfcompile.SGD(MOMENTUM, WEIGHT_DECAY)
    job = Job(task.model, (task.x,), resolve_loss("cross_entropy"), request, optimizer, LEARNING_RATE)
    rows = profile(analyse(job), task.x.numpy(), task.labels.numpy())
    return rows, measure_limits()


def table(rows: list[Row], limits: Limits, top: int) -> str:
    total = sum(row.seconds for row in rows)
    ideal = sum(row.limit(limits) for row in rows)
    lines = [
        f"The machine, measured: {limits}.",
        f"{len(rows)} kernel calls, {total * 1e3:.1f} ms; their limits add up to {ideal * 1e3:.1f} ms"
        f" ({ideal / total:.0%}).",
        "",
        f"{'ms':>8} {'share':>6} {'GFLOP/s':>8} {'GB/s':>6} {'of limit':>8}  kernel",
    ]
    for row in sorted(rows, key=lambda row: -row.seconds)[:top]:
        rate, traffic = row.flops / row.seconds / 1e9, row.bytes / row.seconds / 1e9
        share, of_limit = row.seconds / total, row.limit(limits) / row.seconds
        lines.append(
            f"{row.seconds * 1e3:8.2f} {share:6.1%} {rate:8.1f} {traffic:6.1f} {of_limit:8.0%}  {row.kernel[:90]}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="resnet18")
    for name, default in (("batch", 8), ("layers", 4), ("r", 2), ("top", 30)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--size", type=int)
    parser.add_argument("--exact", action="store_true")
    arguments = parser.parse_args()
    setting = Setting(arguments.model, arguments.batch, arguments.size, arguments.layers, arguments.r)
    rows, limits = profile_model(setting, arguments.exact)
    print(table(rows, limits, arguments.top))


if __name__ == "__main__":
    main()
