"""report.json as a dictionary, and the three files. Numbers are *counted* from shapes unless they say otherwise."""

from __future__ import annotations

import dataclasses
import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gfcompile.passes.prefix import FORMATS
from gfcompile.plan import Layer, Plan, PlannedLayer
from gfcompile.report.arena_picture import Box, draw_arena
from gfcompile.report.counts import Flops, conv_input_bytes, exact_flops, filtered_flops, kept_bytes
from gfcompile.report.estimate import make_estimate
from gfcompile.report.gpu import make_gpu
from gfcompile.report.memory import live_bytes, make_memory, variants
from gfcompile.report.memory_picture import Curve, draw_memory
from gfcompile.report.page import LABELS, render_page
from gfcompile.report.sparse import make_sparse
from gfcompile.report.tuning import make_tuning
from gfcompile.runtime.tensorfile import write_atomically
from gfcompile.version import __version__

if TYPE_CHECKING:
    from gfcompile.codegen.cuda.ptxas import Usage
    from gfcompile.codegen.program import Program
    from gfcompile.job import Analysis

FORMAT = 1
PACKAGES = {"torch": "torch", "tvm": "apache-tvm", "numpy": "numpy"}


def make_report(analysis: Analysis) -> dict[str, Any]:
    """Everything that report.json holds."""
    refusals = [(refusal.layer, refusal.reason) for refusal in analysis.refusals]
    report = survey_report(analysis.layers, analysis.plan, refusals, analysis.job.example[0].shape)
    report["memory"] |= make_memory(analysis)
    report["prefix"] = _prefix(analysis)
    report["loss"] = analysis.job.loss.name
    report["optimizer"] = {**analysis.job.optimizer.as_mapping(), "lr": analysis.job.lr}
    target = analysis.scheduler.target
    report["target"] = {"name": target.name, "description": target.description, "kind": target.kind}
    report["estimate"] = make_estimate(analysis)
    report["tuning"] = make_tuning(analysis)
    report["kernels"] = {name: len(planned.program.functions) for name, planned in analysis.programs.items()}
    report["passes"] = [
        {
            "program": program,
            "name": event.pass_name,
            "sites": list(event.sites),
            "seconds": round(event.seconds, 4),
            "seconds_are": "measured",
        }
        for program in analysis.programs
        for event in analysis.steps[program].log
    ]
    return report


def survey_report(
    layers: Sequence[Layer], plan: Plan, refusals: Iterable[tuple[str, str]], input_shape: Sequence[int]
) -> dict[str, Any]:
    """The part that needs no lowering: plan, layers with their FLOPs and bytes, the conv-input table, refusals."""
    reasons = dict(refusals)
    planned = {layer.name: layer for layer in plan.trained}
    first = plan.trained[0].name if plan.trained else None
    kept = [
        (layer.geometry, None if layer.name in reasons else layer.r, layer.channels)
        for layer in plan.trained
        if layer.geometry is not None
    ]
    exact_bytes, filtered_bytes = conv_input_bytes(kept)
    return {
        "format": FORMAT,
        "numbers_are": "counted",
        "input_shape": [int(size) for size in input_shape],
        "plan": {
            "trained": [layer.name for layer in plan.trained],
            "filtered": [layer.name for layer in plan.trained if layer.r is not None and layer.name not in reasons],
            "exact": plan.exact,
            "batchnorm": plan.batchnorm,
            "compat": "reference" if plan.reference else None,
            "trained_parameters": sorted(plan.trained_parameters),
        },
        "sparse": make_sparse(layers, plan),
        "layers": [_layer(layer, planned.get(layer.name), reasons, plan, layer.name == first) for layer in layers],
        "memory": {
            "numbers_are": "counted",
            "conv_inputs": {
                "numbers_are": "counted",
                "exact_bytes": exact_bytes,
                "filtered_bytes": filtered_bytes,
            },
        },
        "refusals": [{"layer": layer, "reason": reason} for layer, reason in reasons.items()],
        "versions": _versions(),
    }


def _prefix(analysis: Analysis) -> dict[str, Any]:
    """What a cache of the frozen part's features saves, whether it was compiled or not."""
    prefix = analysis.prefix
    return {
        "numbers_are": "counted",
        "multiply_adds": prefix.multiply_adds,
        "step_multiply_adds": prefix.step_multiply_adds,
        "share": round(prefix.share, 4),
        "bytes_a_sample": {kind: prefix.bytes_a_sample(kind) for kind in FORMATS},
        "features": [[int(size) for size in node.meta["val"].shape] for node in prefix.features],
        "endings": [dataclasses.asdict(ending) for ending in prefix.endings],
        "refusal": prefix.refusal,
        "compiled": analysis.job.cache_prefix,
    }


def write_report(analysis: Analysis, folder: Path, usages: Sequence[Usage] = ()) -> None:
    """report.json, report.md and the two pictures in the folder; `usages` are those of a GPU's kernels."""
    report = make_report(analysis)
    gpu = analysis.scheduler.target.gpu
    if gpu is not None and usages:
        report["gpu"] = make_gpu(gpu.arch, usages)
    write_atomically(folder / "report.json", [(json.dumps(report, indent=1) + "\n").encode()])
    planned = analysis.programs["train"]
    picture = draw_arena(_boxes(planned.program, planned.placement.offsets), len(planned.program.calls), "train")
    write_atomically(folder / "arena.svg", [picture.encode()])
    curves = {
        LABELS[name]: Curve(live_bytes(variant), variant.program.loss_call())
        for name, variant in variants(analysis).items()
    }
    write_atomically(folder / "memory.svg", [draw_memory(curves).encode()])
    write_atomically(folder / "report.md", [render_page(report, ("memory.svg", "arena.svg")).encode()])


def _layer(
    layer: Layer, planned: PlannedLayer | None, reasons: Mapping[str, str], plan: Plan, is_first: bool
) -> dict[str, Any]:
    refused = reasons.get(layer.name)
    r = planned.r if planned is not None and refused is None else None
    channels = planned.channels if planned is not None else None
    row: dict[str, Any] = {
        "name": layer.name,
        "kind": layer.kind,
        "trained": planned is not None,
        "filtered": r is not None,
        "r": r,
        "channels": channels,
        "role": planned.role if planned is not None else "frozen",
        "is_shortcut": layer.is_shortcut,
        "refusal": refused,
        "geometry": dataclasses.asdict(layer.geometry) if layer.geometry is not None else None,
        "flops": None,
        "kept_bytes": None,
    }
    if layer.geometry is None:
        return row
    if planned is None:
        row["flops"] = {"numbers_are": "counted", "exact": {"forward": exact_flops(layer.geometry).forward}}
        return row
    # nothing before the first trained layer wants a gradient, so its g_x is never computed
    exact = exact_flops(layer.geometry, input_gradient=not is_first)
    if r is None:
        used = exact_flops(layer.geometry, not is_first, channels)
    else:
        used = filtered_flops(layer.geometry, r, plan.reference, not is_first, channels)
    row["flops"] = {"numbers_are": "counted", "exact": _flops(exact), "filtered": _flops(used)}
    row["kept_bytes"] = {
        "numbers_are": "counted",
        "exact": kept_bytes(layer.geometry),
        "filtered": kept_bytes(layer.geometry, r, channels),
    }
    return row


def _flops(flops: Flops) -> dict[str, int]:
    return {**dataclasses.asdict(flops), "backward": flops.backward, "total": flops.total}


def _boxes(program: Program, offsets: Mapping[int, int]) -> list[Box]:
    last, saved, boundary = program.last_reads(), set(program.saved()), program.loss_call()
    boxes = []
    for start, call in enumerate(program.calls):
        for index in call.born:
            if index not in offsets:
                continue
            buffer = program.buffers[index]
            phase = "saved" if index in saved else "forward" if start <= boundary else "backward"
            stop = min(last[index] + 1, len(program.calls))
            boxes.append(Box(start, stop, offsets[index], buffer.bytes, phase, f"{buffer.name} ({call.kernel})"))
    return boxes


def _versions() -> dict[str, str]:

    found = {"gfcompile": __version__, "python": platform.python_version()}
    for name, package in PACKAGES.items():
        try:
            found[name] = version(package)
        except PackageNotFoundError:
            continue
    return found
