"""Memory of one training step: gfcompile's plan, counted, against PyTorch eager, measured.

    python -m benchmarks.memory [--models resnet18 ...] [--only peaks] [--size 224] [--json FILE] [--quick]

Two tables. *Peaks*: the arena that holds every temporary of the compiled step, against the peak of PyTorch's allocator
over the same step, exact and with the plain gradient filter (an autograd function that saves patch sums). *Kept*: what
crosses from forward to backward, against what exact training keeps. Parameters, buffers, optimizer state and the batch
are outside on both sides; the arena holds the batch's NHWC copy all the same. Nothing is timed: a busy machine changes
no number.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import describe_machine
from benchmarks.memory_peers import MODELS, Task, build_model
from benchmarks.memory_table import table
from gfcompile.frontend.losses import resolve_loss
from gfcompile.job import Analysis, Job
from gfcompile.plan import Layer
from gfcompile.settings.schema import Request
from gfcompile.stages import analyse, make_survey

ROOT = Path(__file__).resolve().parents[1]
SECTIONS = ("peaks", "kept")
NORMS = ("frozen affine", "trained affine", "train mode")
PATCHES = (2, 4)
LAST_BAR, ALL_BAR = 0.7, 0.35  # of the best peer's peak, last layers; of exact training's, every convolution
KEPT_BARS = {2: 0.25, 4: 0.08}  # of what exact training keeps, affine trained
BAR_MODELS = ("resnet18", "mobilenet_v2")  # the bars are about these


@dataclass(frozen=True)
class Case:
    """What is trained: the last `layers` convolutions and the head, or everything but batch norms where it is None."""

    model: str
    narrow: bool
    batch: int
    size: int
    layers: int | None
    r: int = 2
    norms: str = NORMS[0]

    @property
    def trains(self) -> str:
        return "all" if self.layers is None else f"last {self.layers}"


def main() -> int:
    arguments = _arguments()
    report: dict[str, Any] = {"machine": describe_machine(), "peaks": [], "kept": []}
    if "peaks" in arguments.only:
        report["peaks"] = [peak_row(case) for case in _peak_cases(arguments)]
    if "kept" in arguments.only:
        report["kept"] = [kept_row(case) for case in _kept_cases(arguments)]
    print(table(report))
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


def peak_row(case: Case) -> dict[str, Any]:
    """The planned arena beside both peers' peaks."""
    _say(case)
    analysis = analyse_case(case)
    exact, filtered = measure_peak(task_of(case, analysis)), measure_peak(task_of(case, analysis, filtered=True))
    peaks = {"exact": exact["peak_bytes"], "filter": filtered["peak_bytes"]}
    base = "exact" if case.layers is None else min(peaks, key=lambda name: peaks[name])
    arena, scratch = analysis.arena_bytes, analysis.scratch_bytes
    return {
        "case": asdict(case) | {"trains": case.trains},
        "counted": {
            "arena_bytes": arena,
            "arena_bytes_by_program": {name: each.placement.bytes for name, each in analysis.programs.items()},
            "scratch_bytes_a_thread": scratch,
        },
        "measured": {"exact": exact, "filter": filtered},
        "ratios": {name: arena / peak for name, peak in peaks.items()},
        "ratios_with_scratch": {name: (arena + scratch) / peak for name, peak in peaks.items()},
        "bar": {"of": base, "at_most": ALL_BAR if case.layers is None else LAST_BAR},
    }


def kept_row(case: Case) -> dict[str, Any]:
    """The bytes that cross from forward to backward at each r, beside what exact training keeps."""
    _say(case)
    analyses = {r: analyse_case(replace(case, r=r)) for r in PATCHES}
    exact = measure(task_of(case, analyses[PATCHES[0]]))
    has_bars = case.norms == "trained affine" and case.model in BAR_MODELS
    return {
        "case": asdict(case) | {"trains": case.trains},
        "counted": {f"r={r}": analysis.saved_bytes for r, analysis in analyses.items()},
        "measured": {"exact": exact},
        "ratios": {f"r={r}": analysis.saved_bytes / exact["kept_bytes"] for r, analysis in analyses.items()},
        "bars": {f"r={r}": bar for r, bar in KEPT_BARS.items()} if has_bars else {},
    }


def analyse_case(case: Case) -> Analysis:
    model = build_model(case.model, case.narrow)
    job = Job(model, (torch.zeros(case.batch, 3, case.size, case.size),), resolve_loss("cross_entropy"), Request())
    return analyse(replace(job, request=request_of(case, make_survey(job))))


def request_of(case: Case, layers: Sequence[Layer]) -> Request:
    """The case in the compiler's words; projections have to be named."""
    return Request(
        layers=case.layers,
        r={"*": case.r},
        train=[layer.name for layer in layers if layer.kind != "other"] if case.layers is None else [],
        batchnorm="train" if case.norms == "train mode" else "eval",
        train_affine=case.norms == "trained affine",
    )


def task_of(case: Case, analysis: Analysis, filtered: bool = False) -> Task:
    """The same training for PyTorch: the plan is the compiler's own."""
    chosen = analysis.filtered_layers if filtered else []
    trained = tuple(sorted(analysis.plan.trained_parameters))
    patches = {layer.name: layer.r for layer in analysis.plan.trained if layer.name in chosen and layer.r is not None}
    return Task(case.model, case.narrow, case.batch, case.size, trained, analysis.plan.batchnorm, patches)


def measure_peak(task: Task) -> dict[str, Any]:
    """NCHW or channels last, whichever takes less: a user short of memory would have tried both."""
    tries = [measure(replace(task, channels_last=layout)) | {"channels_last": layout} for layout in (False, True)]
    return min(tries, key=lambda measured: measured["peak_bytes"])


def measure(task: Task) -> dict[str, Any]:
    """Measure one peer in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.memory_peers"]
    done = subprocess.run(
        command, input=json.dumps(asdict(task)), capture_output=True, text=True, cwd=ROOT, check=False
    )
    if done.returncode:
        raise RuntimeError(f"the peer of {task.model}, batch {task.batch}, failed:\n{done.stderr}")
    return json.loads(done.stdout)


def _peak_cases(arguments: argparse.Namespace) -> list[Case]:
    cases = []
    batches = (2,) if arguments.quick else (8, 32)
    for model in arguments.models or BAR_MODELS:
        cases += [Case(model, arguments.quick, batch, arguments.size, layers=4) for batch in batches]
        if not arguments.quick:
            cases.append(Case(model, False, batches[0], arguments.size, layers=None))
    return cases


def _kept_cases(arguments: argparse.Namespace) -> list[Case]:
    batch, norms = (2, NORMS[1:2]) if arguments.quick else (8, NORMS)
    return [
        Case(model, arguments.quick, batch, arguments.size, layers=4, norms=each)
        for model in arguments.models or MODELS
        for each in norms
    ]


def _say(case: Case) -> None:
    print(f"{case.model}, {case.trains}, batch {case.batch}, {case.norms}", file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, help="these, in both tables")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS, help="these tables alone")
    parser.add_argument("--size", type=int, help="edge of the square input, 224 unless told")
    parser.add_argument("--json", type=Path, help="also write the numbers, every single one, to this file")
    parser.add_argument("--quick", action="store_true", help="one row a table, of a small network")
    arguments = parser.parse_args()
    if arguments.quick and not arguments.models:
        arguments.models = ["resnet18"]
    arguments.size = arguments.size or (128 if arguments.quick else 224)
    return arguments


if __name__ == "__main__":
    sys.exit(main())
