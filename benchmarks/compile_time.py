"""How long compiling and planning take, against another commit of this repository, in turn on the same machine.

    python -m benchmarks.compile_time --against COMMIT [--models resnet18 ...] [--rounds 2] [--plan] [--json FILE]

Of each model four times, medians over the rounds: `new machine`, nothing in any cache; `cold`, the runtime's C compiled
before and no kernel; `other r`, the same command again with another patch, all caches as the first left them; and
`in Python`, that again by `gfcompile.build` in a process that has compiled before, so without the seconds that
importing torch and tvm takes. Whole processes are timed, from their start to their end, but for the last.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.machine import describe_machine

ROOT = Path(__file__).resolve().parents[1]
NETWORKS = Path(__file__).with_name("networks")  # models that another commit's tree does not have
MODELS = {  # factory, input
    "resnet18": ("tests.models.resnet:resnet18", "8x3x224x224"),
    "mobilenet_v2": ("tests.models.mobilenet:mobilenet_v2", "8x3x224x224"),
    "efficientnet_b0": ("efficientnet:efficientnet_b0", "8x3x224x224"),
    "deeplabv3": ("tests.models.deeplab:deeplabv3", "2x3x224x224"),
}
PLANNED = ("tests.models.mobilenet:mobilenet_v2", "8x3x224x224", "50MB")
IN_PYTHON = """
import importlib, sys, time, torch, gfcompile
module, factory = sys.argv[1].split(":")
model = getattr(importlib.import_module(module), factory)().eval()
x = torch.zeros([int(size) for size in sys.argv[2].split("x")])
for r in (2, 4):
    start = time.perf_counter()
    gfcompile.build(model, x, layers=4, r=r, out=f"{sys.argv[3]}/python_step")
print(time.perf_counter() - start)
"""
Times = dict[str, dict[str, list[float]]]  # of what, of which tree, in seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", required=True, help="a commit")
    parser.add_argument("--models", nargs="*", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--plan", action="store_true", help="time `gfcompile plan` too, which takes minutes")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        other = Path(scratch) / "other"
        subprocess.run(["git", "worktree", "add", "--detach", str(other), args.against], cwd=ROOT, check=True)
        try:
            times = measure({"before": other, "now": ROOT}, args.models, args.rounds, args.plan, Path(scratch))
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(other)], cwd=ROOT, check=True)
    print(f"{describe_machine()}; against {args.against}")
    print(table(times))
    if args.json is not None:
        args.json.write_text(json.dumps({"against": args.against, "seconds": times}, indent=1))
    return 0


def measure(trees: dict[str, Path], models: Sequence[str], rounds: int, plan: bool, scratch: Path) -> Times:
    """Trees take turns."""
    times: Times = {}
    for number in range(rounds):
        for model in models:
            factory, shape = MODELS[model]
            for name, tree in trees.items():
                found = _compile_times(tree, factory, shape, scratch)
                for what, seconds in found.items():
                    times.setdefault(f"{model}, {what}", {}).setdefault(name, []).append(seconds)
                    print(f"round {number + 1}: {model}, {what}, {name}: {seconds:.1f} s", file=sys.stderr, flush=True)
    if plan:
        factory, shape, memory = PLANNED
        for name, tree in trees.items():
            words = ["plan", factory, "--input", shape, "--memory", memory, "--out", str(scratch / f"{name}.toml")]
            seconds = _command(tree, scratch / "cache", *words)
            times.setdefault("plan of mobilenet_v2, 52 layers", {})[name] = [seconds]
            print(f"plan, {name}: {seconds:.1f} s", file=sys.stderr, flush=True)
        plans = [(scratch / f"{name}.toml").read_text() for name in trees]
        print(f"plans are {'the same' if plans[0] == plans[1] else 'different'}", file=sys.stderr)
    return times


def _compile_times(tree: Path, factory: str, shape: str, scratch: Path) -> dict[str, float]:
    cache = scratch / "cache"
    shutil.rmtree(cache, ignore_errors=True)
    words = [factory, "--layers", "4", "--input", shape, "--out", str(scratch / "timed_step"), "--quiet"]
    found = {"new machine": _command(tree, cache, *words, "--r", "2")}
    shutil.rmtree(cache / "kernels", ignore_errors=True)
    found["cold"] = _command(tree, cache, *words, "--r", "2")
    found["other r"] = _command(tree, cache, *words, "--r", "4")
    shutil.rmtree(cache / "kernels", ignore_errors=True)
    python = [sys.executable, "-c", IN_PYTHON, factory, shape, str(scratch)]
    run = subprocess.run(python, cwd=tree, env=_environment(tree, cache), check=True, capture_output=True, text=True)
    found["other r in Python"] = float(run.stdout.split()[-1])
    return found


def _command(tree: Path, cache: Path, *words: str) -> float:
    start = time.perf_counter()
    command = [sys.executable, "-m", "gfcompile.cli", *words]
    subprocess.run(command, cwd=tree, env=_environment(tree, cache), check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def _environment(tree: Path, cache: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": f"{tree}:{NETWORKS}", "GFCOMPILE_CACHE": str(cache)}


def table(times: Times) -> str:
    """Medians and their ratio."""
    lines = ["| | before | now | times faster |", "|---|---|---|---|"]
    for what, found in times.items():
        before, now = (statistics.median(found[name]) for name in ("before", "now"))
        lines.append(f"| {what} | {before:.1f} s | {now:.1f} s | {before / now:.2f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
