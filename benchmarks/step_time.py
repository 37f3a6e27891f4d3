"""Time a training step, or the forward pass alone: the compiled one against PyTorch and the published filter.

    python -m benchmarks.step_time [--model resnet18] [--batch 8] [--size 224] [--layers 4] [--r 2] [--forward]

Each peer lives in a process of its own; all stay up and take turns, one step a round.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from math import isclose
from pathlib import Path
from statistics import median
from typing import Any

import torch

import gfcompile
from benchmarks.machine import describe_machine, machine_line
from benchmarks.models import MODELS, make_task
from benchmarks.peers import FORWARD, LEARNING_RATE, MOMENTUM, STEPS, WEIGHT_DECAY, OneStep, Task
from benchmarks.processes import Prepared, serve, take_turns

PEERS = {
    "eager": "PyTorch eager, NCHW",
    "eager_channels_last": "PyTorch eager, channels last",
    "torch_compile": "torch.compile",
    "published": "published filter, eager",
    "published_channels_last": "published filter, channels last",
    "published_compile": "published filter, torch.compile",
    "gfcompile": "gfcompile, filtered",
    "gfcompile_exact": "gfcompile, --exact",
}
FORWARD_PEERS = ("eager", "eager_channels_last", "torch_compile", "gfcompile")
EXACT_PEERS = ("eager", "eager_channels_last", "torch_compile")
FILTERED_PEERS = ("published", "published_channels_last", "published_compile")
SAME_LOSS = 1e-3  # the first forward pass is exact for every peer; only rounding may differ


@dataclass(frozen=True)
class Setting:
    """What is timed. `size` None is the model's usual one."""

    model: str = "resnet18"
    batch: int = 8
    size: int | None = None
    layers: int = 4
    r: int = 2
    forward: bool = False


def measure(setting: Setting, repeats: int, peers: tuple[str, ...] | None = None) -> dict[str, Any]:
    """Every peer's times in milliseconds, who failed, whose first loss differs."""
    names = peers or (FORWARD_PEERS if setting.forward else tuple(PEERS))
    times, facts, failed = take_turns(
        "benchmarks.step_time",
        {name: {**asdict(setting), "peer": name} for name in names},
        repeats,
    )
    rows = {name: _row([1e3 * value for value in values], facts[name]) for name, values in times.items()}
    losses = {name: row["loss"] for name, row in rows.items() if "loss" in row}
    first = next(iter(losses.values()), 0.0)
    other = [name for name, loss in losses.items() if not isclose(loss, first, rel_tol=SAME_LOSS)]
    return {"setting": asdict(setting), "peers": rows, "failed": failed, "differs": other}


def _row(milliseconds: list[float], facts: dict[str, Any]) -> dict[str, Any]:
    return {"best_ms": min(milliseconds), "median_ms": median(milliseconds), "all_ms": milliseconds, **facts}


def fastest(report: dict[str, Any], peers: tuple[str, ...]) -> float:
    """Median of the best of these peers."""
    return min(report["peers"][name]["median_ms"] for name in peers if name in report["peers"])


def prepare(settings: dict[str, Any], scratch: Path) -> Prepared:
    """The peer's step as a function without arguments."""
    torch.set_num_threads(os.cpu_count() or 1)
    peer, setting = settings.pop("peer"), Setting(**settings)
    task = make_task(setting.model, setting.batch, setting.size, setting.layers, setting.r)
    if peer.startswith("gfcompile"):
        return _gfcompile(task, setting, peer == "gfcompile_exact", scratch)
    step: OneStep = (FORWARD if setting.forward else STEPS)[peer](task)
    first = step()
    return step, {} if setting.forward else {"loss": float(first)}


def _gfcompile(task: Task, setting: Setting, exact: bool, scratch: Path) -> Prepared:
    start = time.perf_counter()
    step = gfcompile.compile(
        task.model,
        (task.x,),
        layers=setting.layers,
        r=setting.r,
        exact=exact,
        optimizer=gfcompile.SGD(MOMENTUM, WEIGHT_DECAY),
        lr=LEARNING_RATE,
        out=scratch / "benchmark_step",
        threads=os.cpu_count(),
    )
    facts: dict[str, Any] = {"compile_seconds": time.perf_counter() - start}
    facts["artifact_bytes"] = sum(path.stat().st_size for path in (scratch / "benchmark_step").rglob("*"))
    facts["library_bytes"] = (scratch / "benchmark_step" / "libstep.so").stat().st_size
    x, labels = task.x.numpy(), task.labels.numpy()
    if setting.forward:
        return lambda: step.predict(x), facts
    facts["loss"] = float(step.train(x, labels))
    return lambda: step.train(x, labels), facts


def table(report: dict[str, Any]) -> str:
    """The report as text."""
    setting, rows = report["setting"], report["peers"]
    what = "The forward pass" if setting["forward"] else "One training step"
    plan = "" if setting["forward"] else f", last {setting['layers']} layers, r={setting['r']}"
    size = setting["size"] or MODELS[setting["model"]][1]
    lines = [
        f"{what}, measured: {setting['model']}, batch {setting['batch']}, {size}x{size}{plan}.",
        f"{'':34}{'median ms':>11}{'best ms':>10}{'x gfcompile':>13}",
    ]
    ours = rows["gfcompile"]["median_ms"] if "gfcompile" in rows else None
    for name, row in rows.items():
        ratio = f"{row['median_ms'] / ours:13.2f}" if ours else ""
        lines.append(f"{PEERS[name]:34}{row['median_ms']:11.1f}{row['best_ms']:10.1f}{ratio}")
    lines += [f"{PEERS[name]} computes something else: its first loss differs" for name in report["differs"]]
    lines += [f"{PEERS[name]} was left out: {reason}" for name, reason in report["failed"].items()]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="resnet18")
    parser.add_argument("--size", type=int, help="edge of the images; default: the model's usual one")
    for name, default in (("batch", 8), ("layers", 4), ("r", 2), ("repeats", 10)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--forward", action="store_true", help="the forward pass alone")
    parser.add_argument("--json", type=Path, help="also write the numbers, every single one, to this file")
    parser.add_argument("--only", nargs="+", choices=PEERS, help="time these peers alone")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        return serve(arguments.serve, prepare)
    chosen = {name: getattr(arguments, name) for name in ("model", "batch", "size", "layers", "r", "forward")}
    report = {
        "machine": describe_machine(),
        **measure(Setting(**chosen), arguments.repeats, tuple(arguments.only) if arguments.only else None),
    }
    print(machine_line(report["machine"]))
    print(table(report))
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
