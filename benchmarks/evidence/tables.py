"""The tables of the evidence page, from its recorded rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from statistics import mean, stdev
from typing import Any

from benchmarks.evidence.networks import NAMES
from benchmarks.evidence.settings import COMPARED_LAYERS, METHODS, Plan
from benchmarks.evidence.summary import Rows, Summary
from benchmarks.rounds import ratio
from benchmarks.tables import table

MEGA, KILOBYTE = 1e6, 1024
AGAINST = (
    ("r=2", "exact"),
    ("sparse, dynamic", "sparse, fixed"),
    ("sparse, dynamic, no momentum", "sparse, fixed, no momentum"),
)
NO_NOISE_DB = 80.0  # and more: rounding


def pretrained(rows: Rows) -> list[str]:
    cells = [[NAMES[key], f"{row['accuracy_a']:.1f}", f"{row['accuracy_b']:.1f}"] for key, row in _there(rows).items()]
    return table(["network", "half A, %", "half B, classifier trained alone, %"], cells)


def methods(network: str, steps: Rows, found: Mapping[str, Summary], times: Rows) -> list[str]:
    """Every method at the depth where all are compared; what is not measured yet stays empty."""
    head = [
        "method", "accuracy, %", "by seed", "MFLOPs", "saved, KB", "arena, KB", "weights a step",
        "step, ms", "x exact's speed", "SNR, dB",
    ]  # fmt: skip
    peers = times.get(network, {}).get("peers", {})
    cells = []
    for name, method in METHODS.items():
        compiled = Plan(network, name, COMPARED_LAYERS).compiled
        counted = _there(steps).get(compiled.key)
        if counted is None:
            continue
        summary = found.get(name)
        by_seed = ", ".join(f"{value:.2f}" for value in summary.by_seed.values()) if summary else ""
        cells.append(
            [
                method.label,
                _accuracy(summary) if summary else "",
                by_seed,
                f"{counted['flops'] / MEGA:.2f}",
                f"{counted['saved_bytes'] / KILOBYTE:.0f}",
                f"{counted['arena_bytes'] / KILOBYTE:.0f}",
                "" if counted["updated_share"] is None else f"{counted['updated_share']:.2%}",
                *_time(peers, compiled.method),
                _snr(summary) if summary else "",
            ]
        )
    return table(head, cells)


def depths(summaries: Mapping[tuple[str, int, str], Summary], network: str) -> list[str]:
    """The methods that were run at several depths."""
    layers = sorted({each.layers for each in summaries.values() if each.layers})
    rows = []
    for method in METHODS:
        found = [summaries.get((network, depth, method)) for depth in layers]
        if sum(each is not None for each in found) > 1:
            rows.append([METHODS[method].label, *(_with_flops(each) if each else "" for each in found)])
    return table(["method", *(f"last {depth}" for depth in layers)], rows) if rows else []


def rates(rows: Rows) -> list[str]:
    """What each rate gave on the validation images; a choice at the end of the list is marked."""
    cells = []
    for key, row in _there(rows).items():
        network, _, method = key.partition(", ")
        offered = row["rates"]
        each = [f"{rate:g}: {value:.1f}" for rate, value in zip(offered, row["accuracies"], strict=True)]
        end = " (end of the list)" if row["chosen"] in (offered[0], offered[-1]) else ""
        cells.append([f"{NAMES[network]}, {method}", ", ".join(each), f"{row['chosen']:g}{end}"])
    return table(["", "rate: accuracy, %", "chosen"], cells)


def accuracies(by_method: Mapping[str, Mapping[str, Mapping[str, float]]]) -> list[str]:
    """Mean and standard deviation, then differences; `by_method[method][network]` has the test accuracies by seed."""
    networks = list(dict.fromkeys(network for found in by_method.values() for network in found))
    cells = [
        [method, *(_spread(found[network].values()) for network in networks)] for method, found in by_method.items()
    ]
    for method, other in AGAINST:
        both = [(by_method[method][network].values(), by_method[other][network].values()) for network in networks]
        cells.append([f"({method}) - ({other})", *(f"{mean(first) - mean(second):+.2f}" for first, second in both)])
    return table(["method", *(f"{NAMES[network]}, accuracy, %" for network in networks)], cells)


def _spread(values: Collection[float]) -> str:
    return f"{mean(values):.2f} ± {stdev(values):.2f}"


def _there(rows: Rows) -> dict[str, Any]:
    return {key: row for key, row in rows.items() if "failed_row" not in row}


def _accuracy(summary: Summary) -> str:
    return f"{summary.accuracy:.2f} ± {summary.deviation:.2f}"


def _with_flops(summary: Summary) -> str:
    return f"{_accuracy(summary)} ({summary.counted['flops'] / MEGA:.2f})"


def _snr(summary: Summary) -> str:
    if summary.snr_db is None:
        return ""
    return f"{summary.snr_db:.1f}" if summary.snr_db < NO_NOISE_DB else "rounding only"


def _time(peers: Mapping[str, Any], method: str) -> list[str]:
    if method not in peers or "exact" not in peers:
        return ["", ""]
    faster = ratio(peers["exact"], peers[method])
    return [f"{peers[method]['ms']:.1f}", f"{faster.value:.2f} ({faster.low:.2f}..{faster.high:.2f})"]
