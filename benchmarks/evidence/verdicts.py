"""What the evidence was to show, and whether it did: every sentence is made from the recorded figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.evidence.networks import NAMES
from benchmarks.evidence.settings import COMPARED_LAYERS, METHODS, SHARE
from benchmarks.evidence.summary import Difference, Rows, Summary, compared, differ, summarise
from benchmarks.goals import Verdict

POINTS = 0.5  # by which filtered training may fall short of exact training
PAIRS = (("fixed", "dynamic"), ("fixed_long", "dynamic_long"))
MEMORY = ("saved_bytes", "arena_bytes")


def judge(runs: Rows, steps: Rows, networks: Sequence[str], seeds: Sequence[int]) -> list[Verdict]:
    """The goals for each network; one that lacks a seed is neither met nor missed."""
    summaries = summarise(runs, steps)
    verdicts = []
    for network in networks:
        methods = {
            method: summary
            for method, summary in compared(summaries, network).items()
            if set(seeds) <= summary.by_seed.keys()
        }
        verdicts += [_filtered(network, methods), *(_sparse(network, methods, *pair) for pair in PAIRS)]
    return verdicts


def _filtered(network: str, methods: Mapping[str, Summary]) -> Verdict:
    goal = f"{NAMES[network]}: r=2 on the last {COMPARED_LAYERS} convolutions within {POINTS:g} points of exact"
    if not {"exact", "r2"} <= methods.keys():
        return Verdict(goal)
    difference = differ(methods["r2"], methods["exact"])
    fewer = methods["exact"].counted["flops"] / methods["r2"].counted["flops"]
    found = f"{_points(difference, 'exact')}, for {fewer:.1f} times fewer FLOPs in the trained convolutions"
    return Verdict(goal, found, str(difference), round(difference.mean, 2) >= -POINTS)


def _sparse(network: str, methods: Mapping[str, Summary], fixed_name: str, dynamic_name: str) -> Verdict:
    longer = METHODS[fixed_name].epochs_times
    words = f", both with {longer} times as many epochs" if longer > 1 else ""
    goal = f"{NAMES[network]}: dynamic beats fixed selection at equal memory, {SHARE:.0%} of the weights a step{words}"
    if not {fixed_name, dynamic_name} <= methods.keys():
        return Verdict(goal)
    fixed, dynamic = methods[fixed_name], methods[dynamic_name]
    difference = differ(dynamic, fixed)
    unequal = [name for name in MEMORY if fixed.counted[name] != dynamic.counted[name]]
    found = _points(difference, "fixed")
    if unequal:
        each = "; ".join(f"{name} {dynamic.counted[name]} against {fixed.counted[name]}" for name in unequal)
        return Verdict(goal, f"{found}, but memory differs: {each}", str(difference), False)
    return Verdict(goal, found, str(difference), round(difference.mean, 2) > 0)


def _points(difference: Difference, other: str) -> str:
    found = round(difference.mean, 2)
    if found == 0:
        return f"the same as {other} in the mean"
    return f"{abs(found):.2f} points {'above' if found > 0 else 'below'} {other} in the mean"
