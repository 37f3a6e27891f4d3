"""The goals that the project set itself, and whether the recorded figures meet them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks import backward
from benchmarks.kernels import LOW, REASONS, kind
from benchmarks.rounds import Ratio, mean_of_ratios, mean_ratio, ratio, spread
from benchmarks.step_time import EXACT_PEERS, FILTERED_PEERS, PEERS, fastest

Sections = Mapping[str, Mapping[str, Any]]
BACKWARD = {("full", 2): 22, ("full", 4): 55, ("grid", 2): 30, ("grid", 4): 75}  # times PyTorch's exact backward
ROOFLINE = 0.7
FORWARD = {"resnet18": 2.0, "mobilenet_v2": 1.8}  # times eager, channels last
COMPILE_SECONDS = 60
NAMES = {
    "resnet18": "ResNet-18",
    "resnet34": "ResNet-34",
    "mobilenet_v2": "MobileNetV2",
    "mcunet": "MCUNet-like",
    "deeplabv3": "DeepLabV3-like",
}
GRADIENTS = {"full": "gradient spread to every pixel", "grid": "gradient on the patch grid"}


@dataclass(frozen=True)
class Verdict:
    """A goal; `found` and `met` are None where it was not measured."""

    goal: str
    found: str | None = None
    spread: str = ""
    met: bool | None = None


def judge(sections: Sections) -> list[Verdict]:
    """Every goal in order, also those that the record cannot answer."""
    return [*_shapes(_rows(sections, "shapes")), *_steps(sections), *_forward(sections), *_rest(sections)]


def _rows(sections: Sections, name: str) -> dict[str, Any]:
    rows = sections.get(name, {}).get("rows", {})
    return {key: row for key, row in rows.items() if "failed_row" not in row}


def _shapes(rows: Mapping[str, Any]) -> list[Verdict]:
    verdicts, shares = [], []
    complete = all(f"{channels}@{high}x{wide}" in rows for channels, high, wide in backward.SHAPES)
    for (sort, r), bar in BACKWARD.items():
        goal = f"One layer's backward, r={r}, {GRADIENTS[sort]}: {bar}x PyTorch's exact one"
        each = [backward.compare(row, sort, r) for row in rows.values()] if complete else []
        verdicts.append(_times(goal, bar, mean_of_ratios([one.exact for one in each]) if each else None))
        if sort == "full":
            shares.append(_share(r, [one.of_one for one in each], [one.of_phases for one in each]))
    return [*verdicts, *shares]


def _share(r: int, of_one: list[float], of_phases: list[float]) -> Verdict:
    goal = f"The same, r={r}, spread: {ROOFLINE:.0%} of the roofline, the operation as one"
    if not of_one:
        return Verdict(goal)
    low, high = spread(of_one)
    found = mean_ratio(of_one)
    text = f"{found:.0%} ({mean_ratio(of_phases):.0%} of its phases' limits)"
    return Verdict(goal, text, f"{low:.0%} to {high:.0%} by shape", found >= ROOFLINE)


def _steps(sections: Sections) -> list[Verdict]:
    rows = _rows(sections, "steps")
    anyone = (*EXACT_PEERS, *FILTERED_PEERS)
    wanted = [
        ("resnet18", 8, 2.2, "the fastest peer that filters", "gfcompile", FILTERED_PEERS),
        ("resnet18", 8, 3.5, "exact eager", "gfcompile", ("eager",)),
        ("mobilenet_v2", 8, 2.0, "the fastest peer", "gfcompile", anyone),
        *((model, batch, 1.8, "the fastest peer", "gfcompile", anyone) for model in FORWARD for batch in (1, 32)),
        *((model, 8, 1.3, "torch.compile", "gfcompile_exact", ("torch_compile",)) for model in FORWARD),
    ]
    verdicts = []
    for model, batch, bar, whom, ours, peers in wanted:
        what = "Exact step" if ours == "gfcompile_exact" else "Filtered step"
        goal = f"{what}, {NAMES[model]}, batch {batch}: {bar:g}x {whom}"
        verdicts.append(_against(goal, bar, rows.get(f"{model}, batch {batch}"), ours, peers))
    return verdicts


def _forward(sections: Sections) -> list[Verdict]:
    rows = _rows(sections, "forward")
    return [
        _against(
            f"Forward pass, {NAMES[model]}, batch 8: {bar:g}x PyTorch eager, channels last",
            bar,
            rows.get(f"{model}, batch 8"),
            "gfcompile",
            ("eager_channels_last",),
        )
        for model, bar in FORWARD.items()
    ]


def _rest(sections: Sections) -> list[Verdict]:
    goal = f"ResNet-18 compiled, without tuning, in under {COMPILE_SECONDS} s"
    row = _rows(sections, "steps").get("resnet18, batch 8", {"peers": {}})
    seconds = [
        row["peers"][name]["compile_seconds"] for name in ("gfcompile", "gfcompile_exact") if name in row["peers"]
    ]
    compiled = Verdict(goal)
    if seconds:
        compiled = Verdict(goal, f"{max(seconds):.0f} s", "beside another", max(seconds) < COMPILE_SECONDS)
    goal = f"No kernel under {LOW:.0%} of its own limit"
    profiles = _rows(sections, "kernels")
    if not profiles:
        return [compiled, Verdict(goal)]
    low = [kernel for row in profiles.values() for kernel in low_kernels(row)]
    unknown = [kernel for kernel in low if kind(kernel["kernel"]) not in REASONS]
    found = f"{len(low)} below, listed; the reason is not known of {len(unknown)}" if low else "none"
    return [compiled, Verdict(goal, found, f"{len(profiles)} models", not low)]


def low_kernels(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [kernel for kernel in row["kernels"] if kernel["of_limit"] < LOW]


def _against(goal: str, bar: float, row: Mapping[str, Any] | None, ours: str, peers: tuple[str, ...]) -> Verdict:
    name = fastest(row, peers) if row else None
    if row is None or name is None or ours not in row["peers"]:
        return Verdict(goal)
    verdict = _times(goal, bar, ratio(row["peers"][name], row["peers"][ours]))
    if len(peers) > 1:
        verdict = Verdict(goal, f"{verdict.found} ({PEERS[name]})", verdict.spread, verdict.met)
    return verdict


def _times(goal: str, bar: float, found: Ratio | None) -> Verdict:
    if found is None:
        return Verdict(goal)
    return Verdict(goal, f"{found.value:.2f}x", f"{found.low:.2f} to {found.high:.2f}", found.value >= bar)
