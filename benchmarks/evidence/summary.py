"""Runs of the same network, depth and method as one: the mean over seeds and its spread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

from benchmarks.evidence.settings import COMPARED_LAYERS, Plan

Rows = Mapping[str, Any]


@dataclass(frozen=True)
class Summary:
    """`by_seed` are test accuracies in per cent; `snr_db` is None where no convolution is trained."""

    network: str
    method: str
    layers: int
    by_seed: dict[int, float]
    snr_by_seed: dict[int, float]
    rate: float
    counted: dict[str, Any]

    @property
    def accuracy(self) -> float:
        return mean(self.by_seed.values())

    @property
    def deviation(self) -> float:
        """The standard deviation over seeds; 0 of one."""
        return stdev(self.by_seed.values()) if len(self.by_seed) > 1 else 0.0

    @property
    def snr_db(self) -> float | None:
        return mean(self.snr_by_seed.values()) if self.snr_by_seed else None


@dataclass(frozen=True)
class Difference:
    """Of two methods from the same seeds, first minus second, in points."""

    by_seed: dict[int, float]

    @property
    def mean(self) -> float:
        return mean(self.by_seed.values())

    def __str__(self) -> str:
        return ", ".join(f"{value:+.2f}" for value in self.by_seed.values())


def summarise(runs: Rows, steps: Rows) -> dict[tuple[str, int, str], Summary]:
    """By network, number of layers (0: the classifier alone) and method; `steps` has what was counted of each."""
    grouped: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    for row in runs.values():
        if "failed_row" not in row:
            grouped.setdefault((row["network"], row["layers"], row["method"]), []).append(row)
    return {
        (network, layers, method): Summary(
            network,
            method,
            layers,
            {row["seed"]: row["accuracy"] for row in rows},
            {row["seed"]: row["snr_db"] for row in rows if row["snr_db"] is not None},
            rows[0]["rate"],
            steps[Plan(network, method, layers).compiled.key],
        )
        for (network, layers, method), rows in grouped.items()
    }


def compared(summaries: Mapping[tuple[str, int, str], Summary], network: str) -> dict[str, Summary]:
    """The methods of one network at the depth where all are compared."""
    return {
        summary.method: summary
        for summary in summaries.values()
        if summary.network == network and summary.layers in (0, COMPARED_LAYERS)
    }


def differ(first: Summary, second: Summary) -> Difference:
    return Difference(
        {seed: value - second.by_seed[seed] for seed, value in first.by_seed.items() if seed in second.by_seed}
    )
