"""The arithmetic of taking turns: what a block of runs says, and how many times faster one peer is than another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import median, quantiles
from typing import Any

QUARTILES_FROM = 5  # rounds; of fewer, the spread is their whole range
DIGITS = 4  # of a recorded time: more would be noise


@dataclass(frozen=True)
class Ratio:
    """How many times longer a peer takes than we do, and between which values the rounds lie."""

    value: float
    low: float
    high: float


def summarise(blocks: Sequence[Sequence[float]]) -> dict[str, Any]:
    """One peer's blocks, in seconds, as they are recorded, in milliseconds.

    A block's first run comes after other processes had the caches: `cold`. Its `warm` is the median of the others, or
    that first one where it filled the block alone.
    """
    cold = [1e3 * block[0] for block in blocks]
    warm = [1e3 * median(block[1:] or block) for block in blocks]
    return {
        "ms": _rounded(median(warm)),
        "cold_ms": _rounded(median(cold)),
        "warm": [_rounded(value) for value in warm],
        "cold": [_rounded(value) for value in cold],
        "runs": [len(block) for block in blocks],
    }


def ratio(peer: Mapping[str, Any], ours: Mapping[str, Any], kind: str = "warm") -> Ratio:
    """Of the medians over all rounds; the spread is that of the rounds' own ratios, which share the machine's state."""
    each = [theirs / mine for theirs, mine in zip(peer[kind], ours[kind], strict=True)]
    return Ratio(median(peer[kind]) / median(ours[kind]), *spread(each))


def paired_ratio(peer: Mapping[str, Any], ours: Mapping[str, Any], kind: str = "warm") -> Ratio:
    """The median of the rounds' own ratios: for two that differ by less than the machine does from round to round."""
    each = [theirs / mine for theirs, mine in zip(peer[kind], ours[kind], strict=True)]
    return Ratio(median(each), *spread(each))


def spread(values: Sequence[float]) -> tuple[float, float]:
    """The quartiles, or the least and the greatest where there are few."""
    if len(values) < QUARTILES_FROM:
        return min(values), max(values)
    low, _, high = quantiles(values, n=4, method="inclusive")
    return low, high


def mean_ratio(values: Sequence[float]) -> float:
    """The geometric mean."""
    return exp(sum(map(log, values)) / len(values))


def mean_of_ratios(ratios: Sequence[Ratio]) -> Ratio:
    """The geometric mean of the values, of the low ends and of the high ends."""
    return Ratio(*(mean_ratio([getattr(each, end) for each in ratios]) for end in ("value", "low", "high")))


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
