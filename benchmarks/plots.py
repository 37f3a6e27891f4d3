"""The benchmark page's plots: SVG files that are the same for the same figures, on white for light and dark pages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullLocator, PercentFormatter

from benchmarks import backward
from benchmarks.goals import BACKWARD, NAMES, ROOFLINE
from benchmarks.kernels import LOW
from benchmarks.rounds import ratio
from benchmarks.step_time import EXACT_PEERS, FILTERED_PEERS, PEERS, Setting, fastest

Rows = Mapping[str, Any]
BLUE, ORANGE, GREEN, RED, SKY, YELLOW, BLACK, GREY = (  # Okabe and Ito's, which colour-blind readers tell apart
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#56B4E9",
    "#F0E442",
    "#222222",
    "#999999",
)
STYLE = {
    "svg.hashsalt": "gfcompile",
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.8,
    "font.size": 10,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}
PEER_STYLE = {
    "eager": ("o", GREY),
    "eager_channels_last": ("o", BLACK),
    "torch_compile": ("o", SKY),
    "published": ("D", YELLOW),
    "published_channels_last": ("D", ORANGE),
    "published_compile": ("D", RED),
    "gfcompile_exact": ("|", BLUE),
}
AXES = {
    "batch": "images in a batch",
    "size": "edge of the images, pixels",
    "r": "patch edge r",
    "layers": "layers trained",
}
BINS = ((0.0, LOW, RED), (LOW, 0.5, ORANGE), (0.5, 0.7, SKY), (0.7, float("inf"), BLUE))


@contextmanager
def figure(path: Path, size: tuple[float, float], rows: int = 1, columns: int = 1) -> Iterator[Any]:
    """The axes; the file is written when they are drawn."""
    with pyplot.rc_context(STYLE):
        drawn, axes = pyplot.subplots(rows, columns, figsize=size)
        yield axes
        path.parent.mkdir(parents=True, exist_ok=True)
        drawn.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=110)
        pyplot.close(drawn)


def draw_shapes(rows: Rows, path: Path) -> None:
    """Times faster than the exact backward, shape by shape, and the shares of the two limits."""
    colors = {("full", 2): BLUE, ("grid", 2): SKY, ("full", 4): RED, ("grid", 4): ORANGE}
    with figure(path, (9, 6.4), rows=2) as (upper, lower):
        for at, ((kind, r), color) in enumerate(colors.items()):
            found = [backward.compare(row, kind, r) for row in rows.values()]
            places = [index + 0.2 * (at - 1.5) for index in range(len(found))]
            values = [one.exact.value for one in found]
            ends = [
                [max(0, one.exact.value - one.exact.low) for one in found],
                [max(0, one.exact.high - one.exact.value) for one in found],
            ]
            name = f"r={r}, {'spread to every pixel' if kind == 'full' else 'on the patch grid'}"
            upper.bar(places, values, 0.18, color=color, label=name)
            upper.errorbar(places, values, yerr=ends, fmt="none", ecolor=BLACK, elinewidth=1)
            upper.axhline(BACKWARD[kind, r], color=color, linestyle=":", linewidth=1)
            lower.bar(places, [one.of_one for one in found], 0.18, color=color)
            lower.scatter(places, [one.of_phases for one in found], marker="_", s=90, color=BLACK, zorder=3)
        upper.set_yscale("log")
        upper.set_ylim(bottom=1)
        plain_numbers(upper, "y", [1, 2, 5, 10, 20, 50, 100, 200])
        upper.set_title(
            "Backward of one 3x3 convolution: times faster than PyTorch's exact one (dotted: goals)", loc="left"
        )
        upper.legend(ncols=2, loc="upper left", bbox_to_anchor=(0, -0.12))
        lower.axhline(ROOFLINE, color=BLACK, linestyle=":", linewidth=1)
        lower.yaxis.set_major_formatter(PercentFormatter(1))
        lower.set_title("Of the machine's limit: bars the operation as one, dashes its phases one by one", loc="left")
        for axes in (upper, lower):
            axes.set_xticks(range(len(rows)), list(rows))
            axes.grid(visible=False, axis="x")


def draw_steps(rows: Rows, path: Path) -> None:
    """Every peer of every step, in multiples of ours."""
    keys = list(rows)
    with figure(path, (9, 1.6 + 0.36 * len(keys))) as axes:
        for name, (marker, color) in PEER_STYLE.items():
            points = [
                (ratio(row["peers"][name], row["peers"]["gfcompile"]).value, index)
                for index, row in enumerate(rows.values())
                if {name, "gfcompile"} <= row["peers"].keys()
            ]
            if points:
                edge = {} if marker == "|" else {"edgecolor": BLACK, "linewidth": 0.5}
                axes.scatter(
                    *zip(*points, strict=True), marker=marker, s=52, color=color, label=PEERS[name], zorder=3, **edge
                )
        axes.axvline(1, color=BLUE, linewidth=1.5)
        axes.set_xscale("log")
        plain_numbers(axes, "x", [0.5, 0.7, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24])
        axes.set_yticks(range(len(keys)), [step_name(key) for key in keys])
        axes.invert_yaxis()
        axes.margins(y=0.6 / len(keys))
        axes.set_title("One training step: time in multiples of gfcompile's filtered step (line at 1)", loc="left")
        axes.legend(ncols=3, loc="upper center", bbox_to_anchor=(0.45, -0.08 - 0.4 / (len(keys) + 1)))


def draw_growth(rows: Rows, path: Path) -> None:
    """A panel for each thing that cost grows with; the others stay at their usual value."""
    with figure(path, (9, 6.4), 2, 2) as panels:
        for axes, (name, label) in zip(panels.flat, AXES.items(), strict=True):
            points = growth_points(rows, name)
            values = [value for value, _ in points]
            curves = (("gfcompile, filtered", ("gfcompile",), BLUE), ("best filter in PyTorch", FILTERED_PEERS, RED))
            for title, peers, color in (*curves, ("best exact in PyTorch", EXACT_PEERS, GREY)):
                times = [(value, _best(row, peers, an_image=name == "batch")) for value, row in points]
                drawn = [(value, time) for value, time in times if time is not None]
                if drawn:
                    axes.plot(*zip(*drawn, strict=True), marker="o", color=color, label=title)
            if name == "batch":
                axes.set_xscale("log")
                plain_numbers(axes, "x", values)
            axes.set_xticks(values)
            axes.set_xlabel(label)
            axes.set_ylim(bottom=0)
            axes.set_ylabel("ms an image" if name == "batch" else "ms a step")
        panels.flat[0].figure.suptitle("One training step: how its time grows", x=0.01, ha="left", fontsize=12)
        panels.flat[0].legend(loc="upper right")


def draw_kernels(rows: Rows, path: Path) -> None:
    """How much of each step runs how near to the limit."""
    with figure(path, (9, 1.5 + 0.45 * len(rows))) as axes:
        for index, row in enumerate(rows.values()):
            left = 0.0
            for low, high, color in BINS:
                share = sum(each["share"] for each in row["kernels"] if low <= each["of_limit"] < high)
                axes.barh(index, share, left=left, color=color, label=_bin_name(low, high) if index == 0 else None)
                left += share
            small = row["small"]["share"]
            axes.barh(index, small, left=left, color="#cccccc", label="small kernels" if index == 0 else None)
        axes.set_yticks(range(len(rows)), [step_name(key) for key in rows])
        axes.invert_yaxis()
        axes.set_xlim(0, 1)
        axes.xaxis.set_major_formatter(PercentFormatter(1))
        axes.grid(visible=False, axis="y")
        axes.set_title("Share of a step's time by how near to its limit a kernel runs", loc="left")
        axes.legend(ncols=5, loc="upper center", bbox_to_anchor=(0.5, -0.25), columnspacing=1)


def growth_points(rows: Rows, axis: str) -> list[tuple[int, Any]]:
    """The rows that differ from the middle one in this setting only, by its value."""
    base = growth_base(rows)
    chosen = [row for row in rows.values() if {**row["setting"], axis: 0} == {**base, axis: 0}]
    return sorted(((row["setting"][axis], row) for row in chosen), key=lambda point: point[0])


def growth_base(rows: Rows) -> dict[str, Any]:
    """The setting that shares most values with the others: where the curves cross."""
    settings = [row["setting"] for row in rows.values()]
    names = list(vars(Setting()))
    return max(settings, key=lambda one: sum(one[name] == other[name] for other in settings for name in names))


def step_name(key: str) -> str:
    model, _, rest = key.partition(", ")
    return f"{NAMES.get(model, model)}, {rest}"


def _best(row: Mapping[str, Any], peers: tuple[str, ...], an_image: bool) -> float | None:
    name = fastest(row, peers)
    return None if name is None else row["peers"][name]["ms"] / (row["setting"]["batch"] if an_image else 1)


def _bin_name(low: float, high: float) -> str:
    if high == float("inf"):
        return f"{low:.0%} and more"
    return f"{low:.0%} to {high:.0%}" if low else f"under {high:.0%}"


def plain_numbers(axes: Axes, which: str, ticks: Sequence[float]) -> None:
    """These numbers and no powers of ten on a logarithmic axis; the limits stay."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    limits = axes.get_xlim() if which == "x" else axes.get_ylim()
    axis.set_minor_locator(NullLocator())
    axis.set_ticks([tick for tick in ticks if limits[0] <= tick <= limits[1]])
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
