"""report.md: the numbers of report.json as a page to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields

from gfcompile.geometry.convolution import ConvGeometry
from gfcompile.report.estimate import COLUMNS as ESTIMATE_COLUMNS
from gfcompile.report.estimate import estimate_line, estimate_rows, source_lines
from gfcompile.report.gpu import COLUMNS as GPU_COLUMNS
from gfcompile.report.gpu import gpu_line, gpu_rows
from gfcompile.report.machine_schema import Estimate, NoEstimate
from gfcompile.report.memory_schema import Memory, MemoryTotals, SurveyMemory
from gfcompile.report.schema import LayerRow, OptimizerPart, PassRow, PrefixPart, Report, TrainedFlops
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


def render_page(report: Report, pictures: Sequence[str] = ()) -> str:
    """The page; sections without data are left out."""
    parts = [
        "# Compiled training step",
        f"Input {by_x(report.input_shape)}. {_policy(report)}",
        "All numbers are *counted* from shapes, for one batch and float32; KB is 1024 bytes. Times of passes are "
        "*measured* on the machine that compiled. The *estimate* is neither.",
        "## Trained layers",
        table(LAYER_COLUMNS, layer_rows(report.layers)),
        "*forward* and *backward* are FLOPs, by equations (1), (5) and (15) of the gradient-filtering paper with its "
        "overhead; *kept* is what a convolution's own input costs from forward to backward. The input gradient of the "
        "first trained layer is not computed, and not counted. Where *channels* are drawn, a step computes and applies "
        "the weight gradient of these alone.",
    ]
    if report.refusals:
        rows = [(row.layer, row.reason) for row in report.refusals]
        parts += ["## Layers that stay exact", table(("layer", "reason"), rows)]
    if report.sparse is not None:
        parts += ["## Drawn channels", "\n\n".join(f"{line.strip()}." for line in sparse_lines(report.sparse))]
    parts += ["## Memory", table(MEMORY_COLUMNS, memory_rows(report.memory)), MEMORY_COLUMNS_MEAN]
    parts += _memory_plan(report.memory, pictures)
    parts += ["## Frozen prefix", "\n\n".join(line.strip() + "." for line in prefix_lines(report.prefix))]
    parts += _estimate(report.estimate)
    parts += ["## Tuning", "\n\n".join(f"{line}." for line in tuning_lines(report.tuning))]
    if report.tuning.tuned:
        parts.append(table(TUNING_COLUMNS, tuning_rows(report.tuning)))
    if report.gpu is not None:
        parts += ["## Kernels on the GPU", f"{gpu_line(report.gpu)}.", table(GPU_COLUMNS, gpu_rows(report.gpu))]
    parts += ["## Passes", table(("program", "pass", "sites", "seconds, measured"), _pass_rows(report.passes))]
    parts += ["## Versions", ", ".join(f"{name} {version}" for name, version in report.versions.items())]
    return "\n\n".join(parts) + "\n"


def _memory_plan(memory: Memory, pictures: Sequence[str]) -> list[str]:
    parts = [
        "A training step holds:",
        table(("what", "bytes"), total_rows(memory.totals)),
        "*scratch* is the rest of the arena: what lives and dies within one of the two passes.",
        *(f"![{name.removesuffix('.svg').capitalize()} over a training step]({name})" for name in pictures),
        "## What crosses from forward to backward",
        table(KEPT_COLUMNS, kept_rows(memory)) if memory.saved else "Nothing.",
        "## Gradients at full resolution",
    ]
    full = memory.full_resolution_gradients
    rows = [(row.node, by_x(row.shape), in_bytes(row.bytes), row.reason) for row in full]
    return [*parts, table(("gradient", "shape", "bytes", "why it exists"), rows) if rows else NO_FULL_GRADIENTS]


def _estimate(estimate: Estimate | NoEstimate) -> list[str]:
    parts = ["## Estimate, no measurement", f"{estimate_line(estimate)}."]
    if isinstance(estimate, NoEstimate):
        return parts
    return [
        *parts,
        table(ESTIMATE_COLUMNS, estimate_rows(estimate)),
        "A roofline: each kernel at the machine's peak, or its operands once through memory, whichever takes longer. "
        "Real code reaches neither; only a kernel that finds its operands in a cache can be faster. The figures:",
        "\n".join(f"* {line}" for line in source_lines(estimate.figures)),
    ]


def _pass_rows(passes: Sequence[PassRow]) -> list[tuple[str, ...]]:
    return [(row.program, row.name, str(len(row.sites)), f"{row.seconds:.3f}") for row in passes]


def total_rows(totals: MemoryTotals) -> list[tuple[str, str]]:
    """What a step holds, in words."""
    return [(each.name.replace("_", " "), in_bytes(getattr(totals, each.name))) for each in fields(totals)]


def kept_rows(memory: Memory) -> list[tuple[str, ...]]:
    """One row per tensor that crosses."""
    return [
        (row.layer, row.kind, f"{row.dtype} {by_x(row.shape)}", in_bytes(row.bytes), row.why, row.remedy)
        for row in memory.saved
    ]


def layer_rows(layers: Sequence[LayerRow]) -> list[tuple[str, ...]]:
    """One row per trained layer, in order of execution."""
    return [_layer_row(layer) for layer in layers if layer.trained]


def memory_rows(memory: SurveyMemory) -> list[tuple[str, ...]]:
    """What is kept and what the arena needs: exact, filtered as published, this step."""
    inputs = memory.conv_inputs
    exact, used = in_bytes(inputs.exact_bytes), in_bytes(inputs.filtered_bytes)
    rows: list[tuple[str, ...]] = [("inputs of trained convolutions", exact, used, used)]
    if isinstance(memory, Memory):
        beside = memory.side_by_side
        variants = (beside.exact, beside.published, beside.this_step)
        rows.append(("everything saved for backward", *(in_bytes(each.saved_bytes) for each in variants)))
        rows.append(("arena of a training step", *(in_bytes(each.arena_bytes) for each in variants)))
    return rows


def prefix_lines(prefix: PrefixPart) -> list[str]:
    """What computing the frozen part once per sample would save, and where that part ends."""
    if prefix.refusal:
        return [f"frozen prefix: nothing to cache: {prefix.refusal}"]
    sizes = " or ".join(f"{in_bytes(size)} as {kind}" for kind, size in prefix.bytes_a_sample.items())
    how = "step.open_cache keeps them" if prefix.compiled else "--cache-prefix compiles a step that can keep them"
    lines = [
        f"frozen prefix: {100 * prefix.share:.0f} % of the step's multiply-adds, counted;"
        f" its features are {sizes} per sample; {how}"
    ]
    return lines + [f"  it ends at {ending}" for ending in prefix.endings]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; a bar inside a cell would end it."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def _layer_row(layer: LayerRow) -> tuple[str, ...]:
    if layer.filtered:
        how = "filtered"
    elif layer.refusal:
        how = "exact (refused)"
    else:
        how = "exact (head)" if layer.role == "head" else "exact"
    geometry, flops, kept = layer.geometry, layer.flops, layer.kept_bytes
    if geometry is None or kept is None or not isinstance(flops, TrainedFlops):
        return (layer.name, layer.kind, how, *[""] * (len(LAYER_COLUMNS) - 3))
    return (
        layer.name,
        _geometry(geometry),
        how,
        str(layer.r or ""),
        f"{layer.channels} of {geometry.in_channels}" if layer.channels else "",
        in_flops(flops.filtered.forward + flops.filtered.forward_overhead),
        in_flops(flops.exact.backward),
        in_flops(flops.filtered.backward),
        in_bytes(kept.exact),
        in_bytes(kept.filtered),
    )


def _geometry(geometry: ConvGeometry) -> str:
    words = [
        f"{geometry.in_channels}->{geometry.out_channels}",
        by_x(geometry.kernel),
        f"{by_x(geometry.in_size)}->{by_x(geometry.out_size)}",
    ]
    if geometry.stride != (1, 1):
        words.append(f"stride {by_x(geometry.stride)}")
    if geometry.dilation != (1, 1):
        words.append(f"dilation {by_x(geometry.dilation)}")
    if geometry.groups != 1:
        words.append(f"groups {geometry.groups}")
    return ", ".join(words)


def _policy(report: Report) -> str:
    plan = report.plan
    words = [f"{len(plan.trained)} layers trained, {len(plan.filtered)} of them filtered"]
    words.append(f"batch norm statistics: {plan.batchnorm}")
    if plan.compat:
        words.append(f"formulas: {plan.compat}")
    words.append(f"loss {report.loss}, {optimizer_words(report.optimizer)}")
    return "; ".join(words) + "."


def optimizer_words(optimizer: OptimizerPart) -> str:
    """The optimizer with the settings that are on, and each group's own."""
    settings = optimizer.settings
    own = {key: value for key, value in optimizer.as_data().items() if key not in ("name", "groups", "lr_factor")}
    groups = [f"{pattern}: {_settings_words(each)}" for pattern, each in settings.groups.items()]
    return "; ".join([f"{settings.name} ({_settings_words(own)})", *groups])


def _settings_words(settings: Mapping[str, object]) -> str:
    words = []
    for key, value in settings.items():
        if isinstance(value, bool):
            words += [key] if value else []
        elif value is not None:
            words.append(f"{key} {' and '.join(map(str, value)) if isinstance(value, list | tuple) else value}")
    return ", ".join(words)
