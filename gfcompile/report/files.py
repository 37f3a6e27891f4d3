"""The report's files in an artifact: report.json, which is read again, the page and two pictures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gfcompile.errors import UserError
from gfcompile.report.arena_picture import Box, draw_arena
from gfcompile.report.json_form import as_data, from_data
from gfcompile.report.machine_schema import GpuPart
from gfcompile.report.memory import live_bytes, variants
from gfcompile.report.memory_picture import Curve, draw_memory
from gfcompile.report.page import LABELS, render_page
from gfcompile.report.report import make_report
from gfcompile.report.schema import Report
from gfcompile.runtime.tensorfile import write_atomically

if TYPE_CHECKING:
    from gfcompile.codegen.cuda.ptxas import Usage
    from gfcompile.codegen.program import Program
    from gfcompile.job import Analysis

REPORT = "report.json"


def write_report(analysis: Analysis, folder: Path, usages: Sequence[Usage] = ()) -> None:
    """report.json, report.md and the two pictures in the folder; `usages` are those of a GPU's kernels."""
    report = make_report(analysis)
    gpu = analysis.scheduler.target.gpu
    if gpu is not None and usages:
        report = replace(report, gpu=GpuPart(arch=gpu.arch, kernels=tuple(usages)))
    write_atomically(folder / REPORT, [(json.dumps(as_data(report), indent=1) + "\n").encode()])
    planned = analysis.programs["train"]
    picture = draw_arena(_boxes(planned.program, planned.placement.offsets), len(planned.program.calls), "train")
    write_atomically(folder / "arena.svg", [picture.encode()])
    curves = {
        LABELS[name]: Curve(live_bytes(variant), variant.program.loss_call())
        for name, variant in variants(analysis).items()
    }
    write_atomically(folder / "memory.svg", [draw_memory(curves).encode()])
    write_atomically(folder / "report.md", [render_page(report, ("memory.svg", "arena.svg")).encode()])


def read_report(folder: Path) -> Report:
    """The report of an artifact, as `write_report` wrote it."""
    path = folder / REPORT
    try:
        return from_data(Report, json.loads(path.read_bytes()))
    except OSError as error:
        raise UserError(f"{folder}: no report.json there; give a model, or a folder that gfcompile wrote") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: is damaged; compile again") from error


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
