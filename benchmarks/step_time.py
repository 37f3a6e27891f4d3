"""Time one training step: the compiled one, filtered and exact, against PyTorch's variants and the published filter.

    python benchmarks/step_time.py [--model resnet18] [--batch 8] [--size 224] [--layers 4] [--r 2] [--repeats 10]

Each peer lives in a process of its own, so none warms another's caches or takes its threads; all processes stay up and
take turns, one step a round, so that a noisy machine disturbs them alike. Prints a table; writes nothing but --json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from math import isclose
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PEERS = {
    "eager": "PyTorch eager, NCHW",
    "eager_channels_last": "PyTorch eager, channels last",
    "torch_compile": "torch.compile",
    "reference_filtered": "published filter, PyTorch eager",
    "gfcompile": "gfcompile, filtered",
    "gfcompile_exact": "gfcompile, --exact",
}
BASE = "eager"
WARM_UP = 2
SAME_LOSS = 1e-3  # the first forward pass is exact for every peer; only rounding may differ


def main() -> int:
    arguments = _arguments()
    if arguments.peer:
        return serve(arguments)
    peers: dict[str, subprocess.Popen[str]] = {}
    skipped: dict[str, str] = {}
    losses: dict[str, float] = {}
    try:
        for name in arguments.only or PEERS:
            peer = _start(name)
            answer = _ask(peer)
            if "loss" in answer:
                peers[name], losses[name] = peer, answer["loss"]
            else:
                skipped[name] = answer["failed"]
        times: dict[str, list[float]] = {name: [] for name in peers}
        for turn in range(WARM_UP + arguments.repeats):
            for name, peer in peers.items():
                seconds = _ask(peer, "step\n")["seconds"]
                if turn >= WARM_UP:
                    times[name].append(seconds)
    finally:
        for peer in peers.values():
            peer.stdin.close()  # type: ignore[union-attr]
            peer.wait()
    report = _report(arguments, times, skipped, losses)
    print(table(report))
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


def _start(name: str) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, *sys.argv[1:], "--peer", name]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _ask(peer: subprocess.Popen[str], question: str = "") -> dict[str, Any]:
    peer.stdin.write(question)  # type: ignore[union-attr]
    peer.stdin.flush()  # type: ignore[union-attr]
    line = peer.stdout.readline()  # type: ignore[union-attr]
    return json.loads(line) if line else {"failed": f"its process ended with code {peer.wait()}"}


def serve(arguments: argparse.Namespace) -> int:
    """One peer: say when ready, then answer each line with the seconds of one step."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not be taken for an answer
    with tempfile.TemporaryDirectory() as scratch:
        try:
            step = make_step(arguments, Path(scratch))
            loss = float(step())
        except Exception as error:  # noqa: BLE001 - any failure is this peer's, to be reported in the table
            reason = str(error).strip().splitlines() or [""]
            print(json.dumps({"failed": f"{type(error).__name__}: {reason[0][:200]}"}), file=answers, flush=True)
            return 0
        print(json.dumps({"loss": loss}), file=answers, flush=True)
        for _ in sys.stdin:
            start = time.perf_counter()
            step()
            print(json.dumps({"seconds": time.perf_counter() - start}), file=answers, flush=True)
    return 0


def make_step(arguments: argparse.Namespace, scratch: Path) -> Any:
    """The peer's step as a function without arguments."""
    sys.path.insert(0, str(ROOT))
    import torch

    from benchmarks import peers

    torch.set_num_threads(os.cpu_count() or 1)
    task = _task(arguments)
    if arguments.peer.startswith("gfcompile"):
        return _gfcompile(arguments, task, scratch)
    functions = {
        "eager": peers.eager,
        "eager_channels_last": peers.eager_channels_last,
        "torch_compile": peers.compiled,
        "reference_filtered": peers.reference_filtered,
    }
    return functions[arguments.peer](task)


def _task(arguments: argparse.Namespace) -> Any:
    """The same model, batch and plan for every peer; the plan is the compiler's own."""
    import torch

    from benchmarks.peers import Task
    from gfcompile.compiler import Job, make_survey
    from gfcompile.frontend.losses import resolve_loss
    from gfcompile.plan import Request, make_plan
    from tests.models import randomise_statistics
    from tests.models.mobilenet import mobilenet_v2
    from tests.models.resnet import resnet18

    torch.manual_seed(0)
    model = randomise_statistics({"resnet18": resnet18, "mobilenet_v2": mobilenet_v2}[arguments.model](), 0)
    x = torch.randn(arguments.batch, 3, arguments.size, arguments.size)
    labels = torch.randint(0, 1000, (arguments.batch,))
    request = Request(layers=arguments.layers, patches={"*": arguments.r})
    plan = make_plan(make_survey(Job(model, (x,), resolve_loss("cross_entropy"), request)), request)
    filtered = tuple(layer.name for layer in plan.trained if layer.r is not None)
    return Task(model, x, labels, plan.trained_parameters, filtered, arguments.r)


def _gfcompile(arguments: argparse.Namespace, task: Any, scratch: Path) -> Any:
    import gfcompile
    from benchmarks.peers import LEARNING_RATE, MOMENTUM, WEIGHT_DECAY

    step = gfcompile.compile(
        task.model,
        (task.x,),
        layers=arguments.layers,
        r=arguments.r,
        exact=arguments.peer == "gfcompile_exact",
        optimizer=gfcompile.SGD(MOMENTUM, WEIGHT_DECAY),
        lr=LEARNING_RATE,
        out=scratch / "benchmark_step",
        threads=os.cpu_count(),
    )
    x, labels = task.x.numpy(), task.labels.numpy()
    return lambda: step.train(x, labels)


def _report(
    arguments: argparse.Namespace, times: dict[str, list[float]], skipped: dict[str, str], losses: dict[str, float]
) -> dict[str, Any]:
    settings = {name: getattr(arguments, name) for name in ("model", "batch", "size", "layers", "r", "repeats")}
    milliseconds = {name: [1e3 * seconds for seconds in values] for name, values in times.items()}
    rows = {name: {"best_ms": min(v), "median_ms": median(v), "all_ms": v} for name, v in milliseconds.items()}
    if BASE in rows:
        for row in rows.values():
            row["best_ratio"] = row["best_ms"] / rows[BASE]["best_ms"]  # type: ignore[operator]
            row["median_ratio"] = row["median_ms"] / rows[BASE]["median_ms"]  # type: ignore[operator]
    return {"settings": settings, "machine": machine(), "peers": rows, "losses": losses, "skipped": skipped}


def machine() -> dict[str, Any]:
    versions = {}
    for package in ("gfcompile", "torch", "apache-tvm"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "versions": {"python": platform.python_version(), **versions},
    }


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model"))]
    return names[0] if names else platform.processor() or platform.machine()


def table(report: dict[str, Any]) -> str:
    """The report as text."""
    settings, where = report["settings"], report["machine"]
    versions = ", ".join(f"{name} {number}" for name, number in where["versions"].items())
    lines = [
        "One training step, measured: {model}, batch {batch}, {size}x{size}, last {layers} layers, r={r}.".format_map(
            settings
        ),
        f"{where['cpu']}, {where['cores']} cores, {where['date']}; {versions}.",
        f"{settings['repeats']} rounds after {WARM_UP} of warm-up, peers in turn.",
        "",
        f"{'':34}{'best ms':>10}{'x eager':>9}{'median ms':>11}{'x eager':>9}",
    ]
    for name, row in report["peers"].items():
        best, middle = (f"{row[key]:9.2f}" if key in row else f"{'':9}" for key in ("best_ratio", "median_ratio"))
        lines.append(f"{PEERS[name]:34}{row['best_ms']:10.1f}{best}{row['median_ms']:11.1f}{middle}")
    lines += [
        f"{PEERS[name]} computes something else: its first loss is {loss:.6g}, eager's {report['losses'][BASE]:.6g}"
        for name, loss in report["losses"].items()
        if BASE in report["losses"] and not isclose(loss, report["losses"][BASE], rel_tol=SAME_LOSS)
    ]
    lines += [f"{PEERS[name]} was left out: {reason}" for name, reason in report["skipped"].items()]
    return "\n".join(lines)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["resnet18", "mobilenet_v2"], default="resnet18")
    for name, default in (("batch", 8), ("size", 224), ("layers", 4), ("r", 2), ("repeats", 10)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", type=Path, help="also write the numbers, every single one, to this file")
    parser.add_argument("--only", nargs="+", choices=PEERS, help="time these peers alone")
    parser.add_argument("--peer", choices=PEERS, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
