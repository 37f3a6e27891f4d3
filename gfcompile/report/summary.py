"""What the command line says at the end: plain text, aligned for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path

from gfcompile.codegen.binary_check import needed_glibc
from gfcompile.report.estimate import COLUMNS as ESTIMATE_COLUMNS
from gfcompile.report.estimate import estimate_line, estimate_rows
from gfcompile.report.gpu import gpu_line
from gfcompile.report.machine_schema import Estimate
from gfcompile.report.memory_schema import Memory
from gfcompile.report.page import (
    KEPT_COLUMNS,
    LAYER_COLUMNS,
    MEMORY_COLUMNS,
    kept_rows,
    layer_rows,
    memory_rows,
    optimizer_words,
    prefix_lines,
    total_rows,
)
from gfcompile.report.schema import Report, SurveyReport
from gfcompile.report.sparse import sparse_lines
from gfcompile.report.tuning import tuning_lines
from gfcompile.report.units import in_bytes

LARGEST = 12
LIBRARY, TRAINER = "libstep.so", "gf-train"


def head_text(report: Report, folder: Path | None, is_foreign: bool) -> str:
    """What a user wants to know first: what was filtered, what it costs, what to copy. Shapes were said before."""
    plan, memory = report.plan, report.memory
    exact = [layer for layer in plan.trained if layer not in plan.filtered]
    held = sum(astuple(memory.totals))
    lines = [
        f"filtered: {', '.join(plan.filtered) or 'none'}; trained exactly: {', '.join(exact) or 'none'}",
        f"costs, counted: {in_bytes(held)} of memory in a training step, {in_bytes(memory.saved_bytes)} of it kept"
        f" for backward (exact: {in_bytes(memory.exact_saved_bytes)})",
        estimate_line(report.estimate),
    ]
    if folder is not None and is_foreign:
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        needs = needed_glibc(folder / LIBRARY)
        driver = " and a CUDA driver" if report.gpu is not None else ""
        lines.append(f"copy to the board: {folder}/ ({in_bytes(size)}); it needs glibc {needs} or newer{driver}")
        lines.append(f"    scp -r {folder} user@board:")
        if (folder / TRAINER).exists():
            lines.append(f"    ssh user@board ./{folder.name}/{TRAINER} --selftest")
    return "\n".join(lines)


def summary_text(report: SurveyReport) -> str:
    """Layers, refusals and memory."""
    parts = [text_table(LAYER_COLUMNS, layer_rows(report.layers))]
    plan, refusals = report.plan, report.refusals
    counts = f"{len(plan.trained)} layers trained, {len(plan.filtered)} filtered, {len(refusals)} refused"
    parts.append("\n".join([counts, *(f"  {row.layer}: stays exact: {row.reason}" for row in refusals)]))
    if report.sparse is not None:
        parts.append("\n".join(sparse_lines(report.sparse)))
    parts.append(text_table(MEMORY_COLUMNS, memory_rows(report.memory)))
    if isinstance(report, Report):
        parts += _lowered(report)
    return "\n\n".join(parts)


def _lowered(report: Report) -> list[str]:
    """What is known of the lowered programs."""
    kept = in_bytes(report.memory.totals.optimizer_state)
    parts = [
        f"loss {report.loss}; {optimizer_words(report.optimizer)}; optimizer state {kept}",
        "\n".join(prefix_lines(report.prefix)),
        "\n".join(tuning_lines(report.tuning)),
    ]
    if report.gpu is not None:
        parts.append(gpu_line(report.gpu))
    parts += _memory_plan(report.memory)
    if isinstance(report.estimate, Estimate):
        table = text_table(ESTIMATE_COLUMNS, estimate_rows(report.estimate))
        parts.append(f"{report.estimate.numbers_are} by layer:\n{table}")
    return parts


def _memory_plan(memory: Memory) -> list[str]:
    totals = ", ".join(f"{name} {size}" for name, size in total_rows(memory.totals))
    largest = [row[:5] for row in kept_rows(memory)[:LARGEST]]
    rest = len(memory.saved) - len(largest)
    kept = text_table(KEPT_COLUMNS[:5], largest) + (f"\n... and {rest} smaller" if rest > 0 else "")
    parts = [f"a training step holds: {totals}", f"crosses from forward to backward:\n{kept}"]
    full: dict[str, int] = {}
    for row in memory.full_resolution_gradients:
        full[row.reason] = full.get(row.reason, 0) + row.bytes
    if full:
        lines = [f"  {in_bytes(size)}: {reason}" for reason, size in full.items()]
        parts.append("\n".join(["gradients at full resolution:", *lines]))
    return parts


def usage_text(folder: Path, is_foreign: bool) -> str:
    """Three lines of Python that use the artifact; elsewhere, if it is not for this machine."""
    if is_foreign:
        return f"artifact: {folder}/  (report: {folder}/report.md); it does not run on this machine"
    return "\n".join(
        [
            f"artifact: {folder}/  (report: {folder}/report.md)",
            "",
            f"    import {folder.name}",
            f"    step = {folder.name}.load()",
            "    loss = step.train(x, y)          # step.predict(x), step.state_dict(), step.save_checkpoint(path)",
        ]
    )


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns padded to their widest cell."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    padded = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in (head, *rows)]
    lines = ["  ".join(row).rstrip() for row in padded]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])
