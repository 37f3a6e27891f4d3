"""The two pictures of the evidence, after the gradient-filtering paper's Figures 4 and 5."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from benchmarks.evidence.networks import NAMES
from benchmarks.evidence.settings import METHODS
from benchmarks.evidence.summary import Summary, compared
from benchmarks.plots import BLACK, BLUE, GREEN, GREY, ORANGE, RED, SKY, YELLOW, figure

Summaries = Mapping[tuple[str, int, str], Summary]
STYLE = {
    "classifier": ("x", GREY),
    "exact": ("o", BLACK),
    "r2": ("s", BLUE),
    "r4": ("D", SKY),
    "r7": ("^", GREEN),
    "fixed": ("v", RED),
    "dynamic": ("P", ORANGE),
    "r2_dynamic": ("X", YELLOW),
    "fixed_long": ("<", RED),
    "dynamic_long": (">", ORANGE),
}
MEGA = 1e6


def draw_cost(summaries: Summaries, path: Path) -> None:
    """Accuracy over what training the convolutions adds to a forward pass, a curve a method over its depths."""
    networks = _networks(summaries)
    with figure(path, (4.6 * len(networks), 4.6), columns=len(networks)) as panels:
        for axes, network in zip(_as_list(panels), networks, strict=True):
            for method in METHODS:
                here = sorted(
                    (each for each in summaries.values() if (each.network, each.method) == (network, method)),
                    key=lambda each: each.layers,
                )
                _curve(axes, method, here)
            axes.set_xscale("log")
            axes.set_xlabel("MFLOPs an image to train the convolutions, counted")
            _name(axes, network)


def draw_snr(summaries: Summaries, path: Path) -> None:
    """Accuracy over the SNR of the weight gradients; exact and classifier-only training as lines."""
    networks = _networks(summaries)
    with figure(path, (4.6 * len(networks), 4.6), columns=len(networks)) as panels:
        for axes, network in zip(_as_list(panels), networks, strict=True):
            for method, summary in compared(summaries, network).items():
                marker, color = STYLE[method]
                if method in ("exact", "classifier"):
                    style = "-" if method == "exact" else ":"
                    axes.axhline(summary.accuracy, color=color, linestyle=style, label=METHODS[method].label)
                    continue
                seeds = summary.snr_by_seed
                values = [summary.by_seed[seed] for seed in seeds]
                axes.scatter(list(seeds.values()), values, marker=marker, s=14, color=color, alpha=0.6)
                axes.scatter(
                    [summary.snr_db], [summary.accuracy], marker=marker, s=70, color=color,
                    edgecolor=BLACK, linewidth=0.5, label=METHODS[method].label, zorder=3,
                )  # fmt: skip
            axes.set_xlabel("SNR of the weight gradients, dB, measured")
            _name(axes, network)


def _curve(axes: Axes, method: str, here: list[Summary]) -> None:
    if not here:
        return
    marker, color = STYLE[method]
    label = METHODS[method].label
    if not METHODS[method].trains_convolutions:
        axes.axhline(here[0].accuracy, color=color, linestyle=":", label=label)
        return
    flops = [each.counted["flops"] / MEGA for each in here]
    values = [each.accuracy for each in here]
    axes.errorbar(
        flops, values, yerr=[each.deviation for each in here], marker=marker, markersize=7, color=color, capsize=3,
        markeredgecolor=BLACK, markeredgewidth=0.5, label=label,
    )  # fmt: skip
    for each, x, y in zip(here, flops, values, strict=True):
        axes.annotate(f"{each.layers}", (x, y), (5, 5), textcoords="offset points", fontsize=8, color=GREY)


def _name(axes: Axes, network: str) -> None:
    axes.set_title(NAMES[network], loc="left")
    axes.set_ylabel("test accuracy on half B, %")
    axes.legend(ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.14), fontsize=9)


def _networks(summaries: Summaries) -> list[str]:
    return list(dict.fromkeys(each.network for each in summaries.values()))


def _as_list(panels: Any) -> list[Axes]:
    return list(panels.flat) if hasattr(panels, "flat") else [panels]
