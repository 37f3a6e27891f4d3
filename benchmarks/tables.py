"""The sections of the benchmark page as Markdown: one function a section, from its recorded rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import backward, prose
from benchmarks.goals import GRADIENTS, NAMES, Verdict, low_kernels
from benchmarks.kernels import LOW, REASONS, SMALL, kind
from benchmarks.machine import Limits
from benchmarks.plots import AXES, growth_base, growth_points, step_name
from benchmarks.rounds import Ratio, ratio
from benchmarks.sections import BATCHES, COMPILED_PEERS, MODELS, PATCHES
from benchmarks.step_time import EXACT_PEERS, FILTERED_PEERS, PEERS, fastest

Rows = Mapping[str, Any]
MEGABYTE = 2**20
LONGEST = 10  # kernels of a step that are shown
SHORT = {
    "eager": "eager",
    "eager_channels_last": "eager, channels last",
    "torch_compile": "torch.compile",
    "published": "filter, eager",
    "published_channels_last": "filter, channels last",
    "published_compile": "filter, torch.compile",
    "gfcompile_exact": "gfcompile `--exact`",
}


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def verdicts(found: Sequence[Verdict]) -> list[str]:
    words = {True: "met", False: "**not met**", None: "not measured"}
    rows = [[each.goal, each.found or "", each.spread, words[each.met]] for each in found]
    return table(["goal", "found", "spread", ""], rows)


def shapes(rows: Rows) -> list[str]:
    """The comparison at each r, and the geometric means."""
    lines = [prose.SHAPES.format(batch=next(iter(rows.values()))["batch"])]
    for r in PATCHES:
        for sort in backward.OURS:
            lines += ["", f"r={r}, {GRADIENTS[sort]}:", ""]
            head = ["shape", "ms", "x exact", "cold", "x published", "of the limit as one", "by phase", "machine"]
            each = {key: backward.compare(row, sort, r) for key, row in rows.items()}
            cells = [
                [key, _ms(one.ms), *_comparison(one), str(Limits(**rows[key]["limits"]))] for key, one in each.items()
            ]
            mean = backward.mean_comparison(list(each.values()))
            lines += table(head, [*cells, ["geometric mean", "", *_comparison(mean), ""]])
    return lines


def _comparison(one: backward.Comparison) -> list[str]:
    shares = [f"{one.of_one:.0%}", f"{one.of_phases:.0%}"]
    return [_times(one.exact), f"{one.exact_cold.value:.1f}", _times(one.published), *shares]


def steps(rows: Rows) -> list[str]:
    """Everyone in multiples of ours, batch by batch; then what each has to beat."""
    lines = [prose.STEPS]
    for batch in sorted({row["setting"]["batch"] for row in rows.values()}):
        here = {key: row for key, row in rows.items() if row["setting"]["batch"] == batch}
        head = [f"batch {batch}", "gfcompile, ms (cold)", *SHORT.values()]
        lines += ["", *table(head, [_step_row(row) for row in here.values()])]
    lines += ["", "The fastest peer that does the same work:", ""]
    head = ["step", "filtered: fastest peer", "x ours", "cold", "exact: fastest peer", "x ours", "cold"]
    fastest_rows = [
        [step_name(key), *_beaten(row, FILTERED_PEERS, "gfcompile"), *_beaten(row, EXACT_PEERS, "gfcompile_exact")]
        for key, row in rows.items()
    ]
    return [*lines, *table(head, fastest_rows), "", *_remarks(rows), *_left_out(rows)]


def _step_row(row: Mapping[str, Any]) -> list[str]:
    peers, name = row["peers"], NAMES[row["setting"]["model"]]
    ours = peers.get("gfcompile")
    if ours is None:
        return [name, "failed", *("" for _ in SHORT)]
    cells = [_times(ratio(peers[peer], ours)) if peer in peers else "" for peer in SHORT]
    return [name, f"{_ms(ours['ms'])} ({_ms(ours['cold_ms'])})", *cells]


def _beaten(row: Mapping[str, Any], peers: tuple[str, ...], ours: str) -> list[str]:
    name = fastest(row, peers)
    if name is None or ours not in row["peers"]:
        return ["", "", ""]
    pair = row["peers"][name], row["peers"][ours]
    return [SHORT[name], _times(ratio(*pair)), f"{ratio(*pair, 'cold').value:.2f}"]


def _remarks(rows: Rows) -> list[str]:
    """Who could not take part, and whose first loss differs."""
    lines = []
    for key, row in rows.items():
        for reason in dict.fromkeys(row["failed"].values()):
            names = [PEERS[name] for name, why in row["failed"].items() if why == reason]
            lines.append(f"* {step_name(key)}: {'; '.join(names)} failed: {reason}")
        lines += [f"* {step_name(key)}: {PEERS[name]} computes something else" for name in row["differs"]]
    return lines


def _left_out(rows: Rows) -> list[str]:
    missing = [
        f"{model}, batch {batch}" for model in MODELS for batch in BATCHES if f"{model}, batch {batch}" not in rows
    ]
    plain = [key for key, row in rows.items() if not {*row["peers"], *row["failed"]} & set(COMPILED_PEERS)]
    words = []
    if missing:
        words.append(f"to stay within half an hour: {'; '.join(map(step_name, missing))}")
    if plain:
        words.append(
            f"since they take half a minute each to start: torch.compile's in {'; '.join(map(step_name, plain))}"
        )
    if not words:
        return []
    return ["", f"Left out {', and '.join(words)}. `python -m benchmarks.suite --only steps --full` has everything."]


def growth(rows: Rows) -> list[str]:
    """A line for each point, curve after curve."""
    base = growth_base(rows)
    lines = [prose.GROWTH.format(**{**base, "model": NAMES[base["model"]]}), ""]
    cells = []
    for axis, label in AXES.items():
        for value, row in growth_points(rows, axis):
            if "gfcompile" in row["peers"]:
                ours = row["peers"]["gfcompile"]
                found = [_beaten(row, peers, "gfcompile") for peers in (FILTERED_PEERS, EXACT_PEERS)]
                each = f"{ours['ms'] / row['setting']['batch']:.2f}"
                cells.append([f"{label} {value}", _ms(ours["ms"]), each, found[0][0], found[0][1], found[1][1]])
    head = ["", "gfcompile, ms", "an image", "best filter", "x ours", "best exact, x ours"]
    return [*lines, *table(head, cells), *_remarks(rows)]


def forward(rows: Rows) -> list[str]:
    """Everyone in multiples of ours."""
    names = [name for name in EXACT_PEERS if any(name in row["peers"] for row in rows.values())]
    cells = []
    for key, row in rows.items():
        peers, ours = row["peers"], row["peers"].get("gfcompile")
        if ours is not None:
            found = [_times(ratio(peers[name], ours)) if name in peers else "" for name in names]
            cold = ratio(peers["eager_channels_last"], ours, "cold").value if "eager_channels_last" in peers else None
            cells.append([step_name(key), _ms(ours["ms"]), *found, f"{cold:.2f}" if cold else ""])
    head = ["", "gfcompile, ms", *(SHORT[name] for name in names), "channels last, cold"]
    return [prose.FORWARD, "", *table(head, cells), *_remarks(rows)]


def compiled(rows: Rows) -> list[str]:
    """Of the steps above, the filtered one and the exact one."""
    cells = []
    for key, row in rows.items():
        both = [row["peers"].get(name, {}) for name in ("gfcompile", "gfcompile_exact")]
        if "compile_seconds" in both[0]:
            seconds = [f"{facts['compile_seconds']:.0f}" if facts else "" for facts in both]
            sizes = [both[0]["library_bytes"] / MEGABYTE, both[0]["artifact_bytes"] / MEGABYTE]
            cells.append([step_name(key), *seconds, f"{sizes[0]:.2f}", f"{sizes[1]:.1f}"])
    head = ["", "compile, s", "`--exact`, s", "libstep.so, MB", "artifact, MB"]
    return [prose.COMPILE, "", *table(head, cells)]


def memory(rows: Rows) -> list[str]:
    """The planned arena beside PyTorch's peak."""
    lines = [prose.MEMORY, ""]
    cells = []
    for key, row in rows.items():
        counted, peaks = row["counted"], {name: row["measured"][name]["peak_bytes"] for name in ("exact", "filter")}
        sizes = [counted["arena_bytes"], counted["scratch_bytes_a_thread"], *peaks.values()]
        ratios = [f"{row['ratios'][name]:.2f}" for name in peaks]
        cells.append([step_name(key), *(f"{size / MEGABYTE:.1f}" for size in sizes), *ratios])
    head = [
        "",
        "arena, MB",
        "scratch a thread, MB",
        "exact eager, MB",
        "plain filter, MB",
        "arena of exact",
        "of filter",
    ]
    return lines + table(head, cells)


def kernels(rows: Rows) -> list[str]:
    """The longest kernels of each step, and by kind those that are far from their limit."""
    lines = [prose.KERNELS]
    for key, row in rows.items():
        low, small = low_kernels(row), row["small"]
        lines += [
            "",
            f"### {step_name(key)}",
            "",
            f"{row['calls']} calls, {_ms(row['ms'])} ms; all limits together are {row['limit_ms'] / row['ms']:.0%}"
            f" of that ({Limits(**row['limits'])}). The longest {LONGEST}:",
            "",
        ]
        head = ["kernel", "calls", "share of the step", "of its limit"]
        lines += table(head, [_kernel(each) for each in row["kernels"][:LONGEST]])
        if low:
            share = sum(each["share"] for each in low)
            lines += ["", f"Under {LOW:.0%}: {len(low)} kernels, {share:.1%} of the step.", "", *_by_kind(low)]
        lines += [
            "",
            f"{small['kernels']} kernels of under {SMALL:.1%} of the step each: {small['share']:.1%} together.",
        ]
    return lines


def _kernel(each: Mapping[str, Any]) -> list[str]:
    return [f"`{each['kernel']}`", str(each["calls"]), f"{each['share']:.1%}", f"{each['of_limit']:.0%}"]


def _by_kind(low: Sequence[Mapping[str, Any]]) -> list[str]:
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for each in low:
        kinds.setdefault(kind(each["kernel"]), []).append(each)
    cells = []
    for name, some in kinds.items():
        shares = [each["of_limit"] for each in some]
        limits = f"{min(shares):.0%}" if len(some) == 1 else f"{min(shares):.0%} to {max(shares):.0%}"
        names = ", ".join(f"`{each['kernel']}`" for each in some)
        share = sum(each["share"] for each in some)
        cells.append([name, names, f"{share:.1%}", limits, REASONS.get(name, "not known yet")])
    return table(["kind", "kernels", "share of the step", "of their limit", "reason"], cells)


def _times(found: Ratio) -> str:
    digits = 1 if found.value >= 10 else 2
    return f"{found.value:.{digits}f} ({found.low:.{digits}f}..{found.high:.{digits}f})"


def _ms(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"
