"""A found plan as tables, as data, as a picture and as plan.toml."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gfcompile.budget.front import Offer
from gfcompile.budget.planfile import write_plan
from gfcompile.budget.planner import Found, Row
from gfcompile.errors import UserError
from gfcompile.interrupts import held
from gfcompile.report.plan_picture import Mark, draw_plans
from gfcompile.report.summary import text_table
from gfcompile.report.units import in_bytes, in_flops
from gfcompile.runtime.tensorfile import write_atomically
from gfcompile.settings.planning import Choice
from gfcompile.settings.words import option

COLUMNS = ("", "score", "arena, placed", "kept, estimated", "FLOPs per step", "plan")
LAYER_COLUMNS = ("layer", "plan", "kept, estimated", "of the score")
ROWS = 16


def found_text(found: Found) -> str:
    """The candidates, the chosen plan by layer, and what it was judged by."""
    shown = _shown(found)
    rows = [_cells(row, row is found.chosen) for row in shown]
    rest = len(found.rows) - len(shown)
    candidates = text_table(COLUMNS, rows) + (f"\n... and {rest} more" if rest else "")
    layers = text_table(LAYER_COLUMNS, [_layer_cells(found, layer, choice) for layer, choice in _chosen(found).items()])
    return "\n\n".join([candidates, layers, "\n".join(about(found))])


def about(found: Found) -> list[str]:
    """In words; every number with its kind."""
    placed = found.chosen.placed
    assert placed is not None
    budget = f"--memory {in_bytes(found.memory)}"
    if found.step_flops is not None:
        budget += f" --step-flops {in_flops(found.step_flops)}"
    measured = "measured on the given batch" if found.scores.is_measured else "estimated from the weights alone"
    lines = [] if found.stopped is None else [found.stopped]
    lines += [
        f"{budget}, batch {found.batch}, target {found.target}",
        f"arena {in_bytes(placed.arena_bytes)} ({placed.arena_bytes} bytes), as the compiler places it, of which"
        f" {in_bytes(placed.saved_bytes)} are kept for the backward pass; the forward pass alone takes"
        f" {in_bytes(placed.predict_bytes)}",
        f"beside the arena: {in_bytes(placed.weight_bytes)} of weights, {in_bytes(placed.optimizer_bytes)} of optimizer"
        f" state, and at most {in_bytes(placed.thread_bytes)} of scratch per thread, counted",
        f"{in_flops(found.chosen.flops)} FLOPs per step in convolutions, counted",
        f"score {found.chosen.score:.3f} of 1 for training all these layers exactly, {measured}",
    ]
    if placed.time.known:
        whole = "" if placed.time.is_complete else f" for {placed.time.known} of {placed.time.calls} kernel calls"
        lines.append(f"{placed.time.seconds * 1e3:.3g} ms per step{whole}, measured when kernels were tuned")
    if found.whole is not None and found.whole.cosine is not None:
        lines.append(
            f"the weight gradient of all its convolutions has a cosine of {found.whole.cosine:.3f} with the exact one,"
            " measured, all layers together"
            + (", every channel updated: sparse draws are not in it" if _draws(found) else "")
        )
    return lines


def as_data(found: Found) -> dict[str, Any]:
    """For plan.json."""
    return {
        "memory": found.memory,
        "step_flops": found.step_flops,
        "target": found.target,
        "batch": found.batch,
        "stopped": found.stopped,
        "score_is": "measured" if found.scores.is_measured else "estimated",
        "cosine_together": found.whole.cosine if found.whole is not None else None,
        "chosen": _row_data(found.chosen),
        "candidates": [_row_data(row) for row in found.rows],
    }


def write_found(found: Found, path: Path) -> None:
    """plan.toml, and beside it its data and picture under the same name."""
    remarks = {
        layer: f"about {_kept(offer)} kept"
        for layer, choice in _chosen(found).items()
        if choice.trains and (offer := _offer(found, layer, choice)) is not None
    }
    try:
        with held():
            write_plan(path, _chosen(found), about(found), remarks)
            write_atomically(path.with_suffix(".json"), [(json.dumps(as_data(found), indent=1) + "\n").encode()])
            write_atomically(path.with_suffix(".svg"), [picture(found).encode()])
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}); choose another with {option('out')}") from error


def picture(found: Found) -> str:
    """Score over the arena, of the plans that were placed: bytes kept are another quantity."""
    marks = [Mark(row.placed.arena_bytes, row.score, row is found.chosen) for row in found.rows if row.placed]
    return draw_plans(marks, found.memory)


def _shown(found: Found) -> list[Row]:
    """Those that were placed, and of the rest as many as there is room for, evenly."""
    placed = [row for row in found.rows if row.placed is not None]
    others = [row for row in found.rows if row.placed is None]
    room = max(0, ROWS - len(placed))
    picked = {id(others[at * len(others) // room]) for at in range(room)} if others and room else set()
    return [row for row in found.rows if row.placed is not None or id(row) in picked]


def _cells(row: Row, is_chosen: bool) -> tuple[str, ...]:
    arena = in_bytes(row.placed.arena_bytes) if row.placed is not None else "-"
    mark = "=>" if is_chosen else ""
    return (mark, f"{row.score:.3f}", arena, in_bytes(row.bytes), in_flops(row.flops), in_words(row.choices))


def in_words(choices: Mapping[str, Choice]) -> str:
    """How many layers get what: "5 freeze, 2 r=4, 1 exact"."""
    counts = Counter(str(choice) for choice in choices.values())
    return ", ".join(f"{count} {way}" for way, count in counts.items())


def _layer_cells(found: Found, layer: str, choice: Choice) -> tuple[str, ...]:
    offer = _offer(found, layer, choice)
    if offer is None:
        return (layer, f"{choice} (head)", "-", "-")
    if not choice.trains:
        return (layer, str(choice), "-", "-")
    return (layer, str(choice), _kept(offer), f"{offer.points / 1e6:.3f}")


def _kept(offer: Offer) -> str:
    """Where every plan's gradient passes, filtering may keep less than freezing: that is no number of bytes."""
    return in_bytes(max(0, offer.passing[0]))


def _draws(found: Found) -> bool:
    return any(choice.sparse is not None for choice in _chosen(found).values())


def _chosen(found: Found) -> Mapping[str, Choice]:
    return found.chosen.choices


def _offer(found: Found, layer: str, choice: Choice) -> Offer | None:
    if layer not in found.prices.layers:
        return None
    offers = found.prices.offers[found.prices.layers.index(layer)]
    return next(offer for offer in offers if offer.choice == choice)


def _row_data(row: Row) -> dict[str, Any]:
    return {
        "score": row.score,
        "kept_bytes_estimated": row.bytes,
        "flops_counted": row.flops,
        "arena_bytes": row.placed.arena_bytes if row.placed is not None else None,
        "saved_bytes": row.placed.saved_bytes if row.placed is not None else None,
        "layers": {layer: str(choice) for layer, choice in row.choices.items()},
    }
