"""report.md: the numbers of report.json as a page to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gfcompile.report.estimate import COLUMNS as ESTIMATE_COLUMNS
from gfcompile.report.estimate import estimate_line, estimate_rows, source_lines
from gfcompile.report.gpu import COLUMNS as GPU_COLUMNS
from gfcompile.report.gpu import gpu_line, gpu_rows
from gfcompile.report.sparse import sparse_lines
from gfcompile.report.tuning import COLUMNS as TUNING_COLUMNS
from gfcompile.report.tuning import tuning_lines, tuning_rows
from gfcompile.report.units import by_x, in_bytes, in_flops

LAYER_COLUMNS = (
    "layer", "geometry", "gradient", "r", "channels", "forward", "backward exact", "backward", "kept exact", "kept",
)  # fmt: skip

LABELS = {"exact": "exact", "published": "filtered as published", "this_step": "this step"}
MEMORY_COLUMNS = ("memory, counted", *LABELS.values())
MEMORY_COLUMNS_MEAN = (
    "*exact* and *filtered as published* keep what autograd keeps between the convolutions; *this step* carries "
    "gradients on the patch grid where it can, and keeps masks as counts or bits."
)
KEPT_COLUMNS = ("layer", "what", "type", "bytes", "why", "what would remove it")
NO_FULL_GRADIENTS = "None: the backward pass through the filtered layers never leaves the patch grid."


def render_page(report: dict[str, Any], pictures: Sequence[str] = ()) -> str:
    """The page; sections without data (a survey has no memory plan) are left out."""
    parts = [
        "# Compiled training step",
        f"Input {by_x(report['input_shape'])}. {_policy(report)}",
        "All numbers are *counted* from shapes, for one batch and float32; KB is 1024 bytes. Times of passes are "
        "*measured* on the machine that compiled. The *estimate* is neither.",
        "## Trained layers",
        table(LAYER_COLUMNS, layer_rows(report)),
        "*forward* and *backward* are FLOPs, by equations (1), (5) and (15) of the gradient-filtering paper with its "
        "overhead; *kept* is what a convolution's own input costs from forward to backward. The input gradient of the "
        "first trained layer is not computed, and not counted. Where *channels* are drawn, a step computes and applies "
        "the weight gradient of these alone.",
    ]
    if report["refusals"]:
        rows = [(row["layer"], row["reason"]) for row in report["refusals"]]
        parts += ["## Layers that stay exact", table(("layer", "reason"), rows)]
    if report["sparse"]:
        parts += ["## Drawn channels", "\n\n".join(f"{line.strip()}." for line in sparse_lines(report["sparse"]))]
    parts += ["## Memory", table(MEMORY_COLUMNS, memory_rows(report)), MEMORY_COLUMNS_MEAN]
    if "saved" in report["memory"]:
        parts += _memory_plan(report["memory"], pictures)
    if "prefix" in report:
        parts += ["## Frozen prefix", "\n\n".join(line.strip() + "." for line in prefix_lines(report["prefix"]))]
    if "estimate" in report:
        parts += _estimate(report["estimate"])
    if "tuning" in report:
        parts += ["## Tuning", "\n\n".join(f"{line}." for line in tuning_lines(report["tuning"]))]
        if report["tuning"]["tuned"]:
            parts.append(table(TUNING_COLUMNS, tuning_rows(report["tuning"])))
    if "gpu" in report:
        parts += ["## Kernels on the GPU", f"{gpu_line(report['gpu'])}.", table(GPU_COLUMNS, gpu_rows(report["gpu"]))]
    if "passes" in report:
        passes = [
            (row["program"], row["name"], str(len(row["sites"])), f"{row['seconds']:.3f}") for row in report["passes"]
        ]
        parts += ["## Passes", table(("program", "pass", "sites", "seconds, measured"), passes)]
    parts += ["## Versions", ", ".join(f"{name} {version}" for name, version in report["versions"].items())]
    return "\n\n".join(parts) + "\n"


def _memory_plan(memory: dict[str, Any], pictures: Sequence[str]) -> list[str]:
    totals = [(name.replace("_", " "), in_bytes(size)) for name, size in memory["totals"].items()]
    parts = [
        "A training step holds:",
        table(("what", "bytes"), totals),
        "*scratch* is the rest of the arena: what lives and dies within one of the two passes.",
        *(f"![{name.removesuffix('.svg').capitalize()} over a training step]({name})" for name in pictures),
        "## What crosses from forward to backward",
        table(KEPT_COLUMNS, kept_rows(memory)) if memory["saved"] else "Nothing.",
        "## Gradients at full resolution",
    ]
    rows = [(row["node"], by_x(row["shape"]), in_bytes(row["bytes"]), row["reason"]) for row in _full(memory)]
    return [*parts, table(("gradient", "shape", "bytes", "why it exists"), rows) if rows else NO_FULL_GRADIENTS]


def _estimate(estimate: dict[str, Any]) -> list[str]:
    parts = ["## Estimate, no measurement", f"{estimate_line(estimate)}."]
    if "none" in estimate:
        return parts
    return [
        *parts,
        table(ESTIMATE_COLUMNS, estimate_rows(estimate)),
        "A roofline: each kernel at the machine's peak, or its operands once through memory, whichever takes longer. "
        "Real code reaches neither; only a kernel that finds its operands in a cache can be faster. The figures:",
        "\n".join(f"* {line}" for line in source_lines(estimate)),
    ]


def _full(memory: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = memory["full_resolution_gradients"]
    return found


def kept_rows(memory: dict[str, Any]) -> list[tuple[str, ...]]:
    """One row a tensor that crosses."""
    return [
        (
            row["layer"],
            row["kind"],
            f"{row['dtype']} {by_x(row['shape'])}",
            in_bytes(row["bytes"]),
            row["why"],
            row["remedy"],
        )
        for row in memory["saved"]
    ]


def layer_rows(report: dict[str, Any]) -> list[tuple[str, ...]]:
    """One row a trained layer, in order of execution."""
    return [_layer_row(layer) for layer in report["layers"] if layer["trained"]]


def memory_rows(report: dict[str, Any]) -> list[tuple[str, ...]]:
    """What is kept and what the arena needs: exact, filtered as published, this step."""
    memory = report["memory"]
    inputs = memory["conv_inputs"]
    exact, used = in_bytes(inputs["exact_bytes"]), in_bytes(inputs["filtered_bytes"])
    rows: list[tuple[str, ...]] = [("inputs of trained convolutions", exact, used, used)]
    for key, words in (("saved_bytes", "everything saved for backward"), ("arena_bytes", "arena of a training step")):
        if "side_by_side" in memory:
            rows.append((words, *(in_bytes(memory["side_by_side"][name][key]) for name in LABELS)))
    return rows


def prefix_lines(prefix: dict[str, Any]) -> list[str]:
    """What computing the frozen part once a sample would save, and where that part ends before anything is trained."""
    if prefix["refusal"]:
        return [f"frozen prefix: nothing to cache: {prefix['refusal']}"]
    sizes = " or ".join(f"{in_bytes(size)} as {kind}" for kind, size in prefix["bytes_a_sample"].items())
    how = "step.open_cache keeps them" if prefix["compiled"] else "--cache-prefix compiles a step that can keep them"
    lines = [
        f"frozen prefix: {100 * prefix['share']:.0f} % of the step's multiply-adds, counted;"
        f" its features are {sizes} a sample; {how}"
    ]
    return lines + [f"  it ends at '{row['where']}': {row['reason']}; {row['remedy']}" for row in prefix["endings"]]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; a bar inside a cell would end it."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def _layer_row(layer: dict[str, Any]) -> tuple[str, ...]:
    if layer["filtered"]:
        how = "filtered"
    elif layer["refusal"]:
        how = "exact (refused)"
    else:
        how = "exact (head)" if layer["role"] == "head" else "exact"
    geometry, flops, kept = layer["geometry"], layer["flops"], layer["kept_bytes"]
    if geometry is None:
        return (layer["name"], layer["kind"], how, *[""] * (len(LAYER_COLUMNS) - 3))
    return (
        layer["name"],
        _geometry(geometry),
        how,
        str(layer["r"] or ""),
        f"{layer['channels']} of {geometry['in_channels']}" if layer["channels"] else "",
        in_flops(flops["filtered"]["forward"] + flops["filtered"]["forward_overhead"]),
        in_flops(flops["exact"]["backward"]),
        in_flops(flops["filtered"]["backward"]),
        in_bytes(kept["exact"]),
        in_bytes(kept["filtered"]),
    )


def _geometry(geometry: dict[str, Any]) -> str:
    words = [
        f"{geometry['in_channels']}->{geometry['out_channels']}",
        f"{by_x(geometry['kernel'])}",
        f"{by_x(geometry['in_size'])}->{by_x(geometry['out_size'])}",
    ]
    if tuple(geometry["stride"]) != (1, 1):
        words.append(f"stride {by_x(geometry['stride'])}")
    if tuple(geometry["dilation"]) != (1, 1):
        words.append(f"dilation {by_x(geometry['dilation'])}")
    if geometry["groups"] != 1:
        words.append(f"groups {geometry['groups']}")
    return ", ".join(words)


def _policy(report: dict[str, Any]) -> str:
    plan = report["plan"]
    words = [f"{len(plan['trained'])} layers trained, {len(plan['filtered'])} of them filtered"]
    words.append(f"batch norm statistics: {plan['batchnorm']}")
    if plan["compat"]:
        words.append(f"formulas: {plan['compat']}")
    if "loss" in report:
        words.append(f"loss {report['loss']}, {optimizer_words(report['optimizer'])}")
    return "; ".join(words) + "."


def optimizer_words(optimizer: dict[str, Any]) -> str:
    """The optimizer with the settings that are on, and each group's own."""
    own = {key: value for key, value in optimizer.items() if key not in ("name", "groups", "lr_factor")}
    groups = [f"{pattern}: {_settings_words(settings)}" for pattern, settings in optimizer["groups"].items()]
    return "; ".join([f"{optimizer['name']} ({_settings_words(own)})", *groups])


def _settings_words(settings: dict[str, Any]) -> str:
    words = []
    for key, value in settings.items():
        if isinstance(value, bool):
            words += [key] if value else []
        elif value is not None:
            words.append(f"{key} {' and '.join(map(str, value)) if isinstance(value, list | tuple) else value}")
    return ", ".join(words)
