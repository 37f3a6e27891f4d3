"""docs/benchmarks.json as a page: docs/benchmarks.md and the plots beside it.

    python -m benchmarks.page [--out docs]

Measures nothing. What is not recorded is named, with the command that measures it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import page_command, plots, prose, tables
from benchmarks.goals import judge
from benchmarks.machine import machine_lines
from benchmarks.record import Record

JSON, MARKDOWN, PLOTS = "benchmarks.json", "benchmarks.md", "benchmarks"
Draw = Callable[[plots.Rows, Path], None]
TITLES = {
    "shapes": "One layer's backward: seven shapes",
    "steps": "Whole training steps",
    "growth": "How cost grows",
    "forward": "The forward pass alone",
    "compile": "Compile time and size",
    "memory": "Peak memory",
    "kernels": "Kernels against the machine's limit",
}
WRITE: dict[str, Callable[[plots.Rows], list[str]]] = {
    "shapes": tables.shapes,
    "steps": tables.steps,
    "growth": tables.growth,
    "forward": tables.forward,
    "compile": tables.compiled,
    "memory": tables.memory,
    "kernels": tables.kernels,
}
DRAW: dict[str, tuple[Draw, str]] = {
    "shapes": (plots.draw_shapes, "bars: times faster than the exact backward, and shares of the limits, by shape"),
    "steps": (plots.draw_steps, "dots: every peer's time in multiples of gfcompile's, by model and batch"),
    "growth": (plots.draw_growth, "curves: milliseconds a step over batch, image size, r and number of layers"),
    "kernels": (plots.draw_kernels, "bars: share of each step's time by how near to the limit its kernels run"),
}
SOURCE = {"compile": "steps"}  # a section whose figures are recorded by another


def render(out: Path) -> None:
    """Write the page and its plots from the JSON in `out`."""
    record = Record(out / JSON)
    lines = ["# Benchmarks", "", *_head(record.sections), "", "## Goals", "", *tables.verdicts(judge(record.sections))]
    for name, title in TITLES.items():
        section = record.sections.get(SOURCE.get(name, name), {})
        lines += ["", f"## {title}", "", *_section(name, section, out)]
    (out / MARKDOWN).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _head(sections: Mapping[str, Any]) -> list[str]:
    lines = [f"* {words}" for words in machine_lines(sections)] or ["* Nothing is recorded yet."]
    if any(section.get("quick") for section in sections.values()):
        lines.append("* **A quick run on tiny settings: its figures mean nothing.**")
    return [
        *lines,
        "* Again: `make bench` (half an hour on two quiet cores);"
        " one part: `python -m benchmarks.suite --only steps`; this page alone: `python -m benchmarks.page`.",
        f"* Every figure behind it: [{JSON}]({JSON}).",
        "",
        prose.INTRODUCTION,
    ]


def _section(name: str, section: Mapping[str, Any], out: Path) -> list[str]:
    every = section.get("rows", {})
    rows = {key: row for key, row in every.items() if "failed_row" not in row}
    source = SOURCE.get(name, name)
    lines = []
    if rows:
        lines += WRITE[name](rows)
        if name in DRAW:
            draw, alternative = DRAW[name]
            draw(rows, out / PLOTS / f"{name}.svg")
            lines += ["", f"![{alternative}]({PLOTS}/{name}.svg)"]
    missing = [key for key in section.get("planned", []) if key not in every]
    if missing or not every:
        what = f"Not measured yet: {'; '.join(missing)}." if missing else "Not measured yet."
        lines += ["", f"{what} `python -m benchmarks.suite --only {source} --resume` does it."]
    lines += [f"\nFailed: {key}: {row['failed_row']}." for key, row in every.items() if key not in rows]
    return lines if lines[0] else lines[1:]


if __name__ == "__main__":
    page_command.run(__doc__, render, MARKDOWN)
