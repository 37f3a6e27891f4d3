"""Time a training step, or the forward pass alone: the compiled one against PyTorch and the published filter.

    python -m benchmarks.step_time [--model resnet18] [--batch 8] [--size 224] [--layers 4] [--r 2] [--forward]

Each peer lives in a process of its own; all stay up and take turns (`processes.py`). Times are medians of warm runs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isclose
from pathlib import Path
from typing import Any

import torch

import gfcompile
from benchmarks.machine import describe_machine, machine_line
from benchmarks.models import MODELS, choose, make_task
from benchmarks.peers import FORWARD, LEARNING_RATE, MOMENTUM, STEPS, WEIGHT_DECAY, OneStep, Task
from benchmarks.processes import Prepared, Protocol, take_turns
from benchmarks.rounds import ratio

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


def measure(
    setting: Setting, protocol: Protocol, peers: tuple[str, ...] | None = None, artifacts: Path | None = None
) -> dict[str, Any]:
    """Every peer's times in milliseconds, who failed, whose first loss differs.

    What gfcompile compiled is left in the folder `artifacts` and taken from there again: the forward pass, say, is
    part of the same library as the step.
    """
    names = peers or (FORWARD_PEERS if setting.forward else tuple(PEERS))
    found = take_turns(prepare, {name: settings_of(name, setting, artifacts) for name in names}, protocol)
    rows = {name: times | found.facts[name] for name, times in found.times.items()}
    losses = {name: row["loss"] for name, row in rows.items() if "loss" in row}
    first = next(iter(losses.values()), 0.0)
    other = [name for name, loss in losses.items() if not isclose(loss, first, rel_tol=SAME_LOSS)]
    return {"setting": asdict(setting), "peers": rows, "failed": found.failed, "differs": other}


def settings_of(peer: str, setting: Setting, artifacts: Path | None = None) -> dict[str, Any]:
    chosen = choose(setting.model, setting.size, setting.layers, setting.r)
    return {"peer": peer, "setting": setting, "chosen": chosen, "artifacts": artifacts}


def fastest(report: Mapping[str, Any], peers: tuple[str, ...]) -> str | None:
    """The name of the best of these peers that took part."""
    there = [name for name in peers if name in report["peers"]]
    return min(there, key=lambda name: report["peers"][name]["ms"], default=None)


def prepare(settings: dict[str, Any], scratch: Path) -> Prepared:
    """The peer's step as a function without arguments."""
    torch.set_num_threads(os.cpu_count() or 1)
    peer, setting = settings["peer"], settings["setting"]
    task = make_task(setting.model, setting.batch, setting.size, setting.r, settings["chosen"])
    if peer.startswith("gfcompile"):
        return _gfcompile(task, setting, peer == "gfcompile_exact", settings["artifacts"] or scratch)
    step: OneStep = (FORWARD if setting.forward else STEPS)[peer](task)
    first = step()
    return step, {} if setting.forward else {"loss": float(first)}


def _gfcompile(task: Task, setting: Setting, exact: bool, folder: Path) -> Prepared:
    facts_file, artifact = _compile_once(task, setting, exact, folder)
    facts = json.loads(facts_file.read_text(encoding="utf-8"))
    step = gfcompile.load(artifact, os.cpu_count())
    x, labels = task.x.numpy(), task.labels.numpy()
    if setting.forward:
        return lambda: step.predict(x), facts
    facts["loss"] = float(step.train(x, labels))
    return lambda: step.train(x, labels), facts


def _compile_once(task: Task, setting: Setting, exact: bool, folder: Path) -> tuple[Path, Path]:
    """The artifact in `folder`, and a file with what is known of it; made unless it is there."""
    edge = task.x.shape[-1]
    name = f"{setting.model}_{setting.batch}_{edge}_{setting.layers}_{'exact' if exact else setting.r}"
    facts_file, artifact = folder / f"{name}.json", folder / f"{name}_step"
    if facts_file.exists():
        return facts_file, artifact
    start = time.perf_counter()
    gfcompile.compile(
        task.model,
        (task.x,),
        layers=setting.layers,
        r=setting.r,
        exact=exact,
        optimizer=gfcompile.SGD(MOMENTUM, WEIGHT_DECAY),
        lr=LEARNING_RATE,
        tuning=False,
        out=artifact,
    )
    facts = {
        "compile_seconds": round(time.perf_counter() - start, 1),
        "artifact_bytes": sum(path.stat().st_size for path in artifact.rglob("*") if path.is_file()),
        "library_bytes": (artifact / "libstep.so").stat().st_size,
    }
    facts_file.write_text(json.dumps(facts), encoding="utf-8")
    return facts_file, artifact


def table(report: dict[str, Any]) -> str:
    """The report as text."""
    setting, rows = report["setting"], report["peers"]
    what = "The forward pass" if setting["forward"] else "One training step"
    plan = "" if setting["forward"] else f", last {setting['layers']} layers, r={setting['r']}"
    size = setting["size"] or MODELS[setting["model"]][1]
    lines = [
        f"{what}, measured: {setting['model']}, batch {setting['batch']}, {size}x{size}{plan}.",
        f"{'':34}{'warm ms':>11}{'cold ms':>10}{'x gfcompile':>13}{'spread':>14}",
    ]
    for name, row in rows.items():
        times = ""
        if "gfcompile" in rows:
            found = ratio(row, rows["gfcompile"])
            times = f"{found.value:13.2f}{f'{found.low:.2f}..{found.high:.2f}':>14}"
        lines.append(f"{PEERS[name]:34}{row['ms']:11.1f}{row['cold_ms']:10.1f}{times}")
    lines += [f"{PEERS[name]} computes something else: its first loss differs" for name in report["differs"]]
    lines += [f"{PEERS[name]} was left out: {reason}" for name, reason in report["failed"].items()]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="resnet18")
    parser.add_argument("--size", type=int, help="edge of the images; default: the model's usual one")
    for name, default in (("batch", 8), ("layers", 4), ("r", 2), ("rounds", 10)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--forward", action="store_true", help="the forward pass alone")
    parser.add_argument("--json", type=Path, help="also write the numbers, every single one, to this file")
    parser.add_argument("--only", nargs="+", choices=PEERS, help="time these peers alone")
    arguments = parser.parse_args()
    chosen = {name: getattr(arguments, name) for name in ("model", "batch", "size", "layers", "r", "forward")}
    report = {
        "machine": describe_machine(),
        **measure(Setting(**chosen), Protocol(arguments.rounds, warm_up=2), tuple(arguments.only or ()) or None),
    }
    print(machine_line(report["machine"]))
    print(table(report))
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
