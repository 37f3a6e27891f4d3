"""The memory benchmark's report as text; MB and KB are 1024-based, as in the paper's tables."""

from __future__ import annotations

from math import isclose
from typing import Any

from benchmarks.machine import machine_line

MEGABYTE, KILOBYTE = 2**20, 2**10
SAME_LOSS = 1e-5  # the forward pass is exact for both peers


def table(report: dict[str, Any]) -> str:
    lines = [machine_line(report["machine"])]
    if report["peaks"]:
        lines += ["", *_peaks(report["peaks"])]
    if report["kept"]:
        lines += ["", *_kept(report["kept"])]
    return "\n".join(lines)


def _peaks(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        f"Peak of one training step in MB, {_images(rows)}, r={rows[0]['case']['r']};"
        " parameters, buffers, optimizer state and the batch are outside.",
        f"{'':32}{'gfcompile, counted':>20}{'PyTorch, measured':>20}{'arena of':>18}{'and scratch of':>18}",
        f"{'':32}{'arena':>10}{'scratch*':>10}{'exact':>10}{'filter':>10}" + f"{'exact':>9}{'filter':>9}" * 2,
    ]
    for row in rows:
        counted, measured, bar = row["counted"], row["measured"], row["bar"]
        sizes = [counted["arena_bytes"], counted["scratch_bytes_a_thread"]]
        sizes += [measured[peer]["peak_bytes"] for peer in ("exact", "filter")]
        ratios = [row[kind][peer] for kind in ("ratios", "ratios_with_scratch") for peer in ("exact", "filter")]
        columns = [f"{size / MEGABYTE:10.2f}" for size in sizes] + [f"{ratio:9.2f}" for ratio in ratios]
        verdict = f"bar: arena <= {bar['at_most']} of {bar['of']}, {_verdict(row['ratios'][bar['of']], bar['at_most'])}"
        lines.append(f"{_name(row['case']):32}{''.join(columns)}  {verdict}")
        if not isclose(measured["exact"]["loss"], measured["filter"]["loss"], rel_tol=SAME_LOSS):
            lines.append(f"{_name(row['case'])}: the peers compute different losses, so one of them is wrong")
    lines.append("* a thread, beside the arena; an upper bound.")
    lines.append("PyTorch: one thread, its workspaces included, the better of NCHW and channels last.")
    return lines


def _kept(rows: list[dict[str, Any]]) -> list[str]:
    patches = list(rows[0]["counted"])
    lines = [
        f"Kept from forward to backward in KB an image, {_images(rows)}; gfcompile counted, PyTorch measured.",
        f"{'':50}{'exact':>10}" + "".join(f"{f'filtered {patch}':>16}{'of exact':>10}" for patch in patches),
    ]
    for row in rows:
        case, exact = row["case"], row["measured"]["exact"]["kept_bytes"]
        an_image = case["batch"] * KILOBYTE
        columns = [f"{row['counted'][patch] / an_image:16.1f}{row['ratios'][patch]:10.1%}" for patch in patches]
        bars = [f"<= {bar:.0%} {_verdict(row['ratios'][patch], bar)}" for patch, bar in row["bars"].items()]
        verdicts = f"  bars: {', '.join(bars)}" if bars else ""
        name = f"{_name(case)}, {case['norms']}"
        lines.append(f"{name:50}{exact / an_image:10.1f}{''.join(columns)}{verdicts}")
    return lines


def _name(case: dict[str, Any]) -> str:
    return f"{case['model']}, {case['trains']}, batch {case['batch']}"


def _images(rows: list[dict[str, Any]]) -> str:
    size = rows[0]["case"]["size"]
    return f"{size}x{size}" + (", small networks" if rows[0]["case"]["narrow"] else "")


def _verdict(ratio: float, bar: float) -> str:
    return "met" if ratio <= bar else "NOT met"
