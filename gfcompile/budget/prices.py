"""What each choice costs and brings, a layer at a time: bytes and FLOPs counted, the score measured or estimated.

Bytes are read off analysed graphs: the training step is rewritten once for each way (exact, each r) with every layer
treated so, and what it keeps is laid to the layers (`report/kept.py`): the input that a weight gradient reads is paid
by who is trained, masks and other statistics by every layer that a gradient reaches. In a mixed plan neighbours share
grids, so the sum is an estimate; a plan is judged by its placed arena. FLOPs are those of the convolutions
(`report/counts.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from gfcompile import pipeline
from gfcompile.budget.choices import EXACT, FILTER, FROZEN, Choice, as_request, choices_of
from gfcompile.budget.front import Offer
from gfcompile.budget.score import POINTS, Scores
from gfcompile.compiler import Job, Traced, allowed_algorithms, trace
from gfcompile.draws import drawn_channels
from gfcompile.plan import Layer
from gfcompile.report.counts import Flops, exact_flops, filtered_flops
from gfcompile.report.kept import EXACT_INPUT, Kept, kept_tensors
from gfcompile.winograd import choose_edge

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Prices:
    """`offers[i]` are those of `layers[i]`, the convolutions that may be trained, in order of execution; `heads` are
    trained by every plan, exactly. `base` is what every plan costs, in bytes and FLOPs."""

    layers: tuple[str, ...]
    heads: tuple[str, ...]
    offers: tuple[tuple[Offer, ...], ...]
    base: tuple[int, int]


@dataclass
class _Bytes:
    """Kept for one layer, by way (None: exact, else r): its input, and what the gradient needs to get there."""

    own: dict[int | None, int]
    reach: dict[int | None, int]


def price(
    job: Job,
    layers: Sequence[Layer],
    chosen: Sequence[str],
    heads: Sequence[str],
    edges: Sequence[int],
    shares: Sequence[float],
    scores: Scores,
    progress: Progress = lambda _: None,
) -> Prices:
    """`layers` is the survey, `chosen` the names of the convolutions that may be trained."""
    by_name = {layer.name: layer for layer in layers}
    everything = {name: Choice(EXACT) for name in (*chosen, *heads)}
    traced = trace(replace(job, request=as_request(everything, job.request)), progress)
    kept, base = _count_bytes(job, traced, layers, chosen, edges, progress)
    passed = _passed_flops(layers, chosen)
    offers = []
    for name in chosen:
        layer = by_name[name]
        options = choices_of(edges, shares, layer.unfilterable is None, layer.undrawable is None)
        offers.append(tuple(_offer(layer, choice, kept[name], passed.get(name, 0), scores) for choice in options))
    forward = sum(exact_flops(layer.geometry).forward for layer in layers if layer.geometry is not None)
    return Prices(tuple(chosen), tuple(heads), tuple(offers), (base, forward))


def _offer(layer: Layer, choice: Choice, kept: _Bytes, passed: int, scores: Scores) -> Offer:
    if layer.geometry is None:
        return Offer(choice, choice.trains, (0, 0), (0, 0), 0)
    if choice == FROZEN:
        through = exact_flops(layer.geometry).input_gradient + passed
        return Offer(choice, False, (0, 0), (kept.reach[None], through), 0)
    channels = drawn_channels(layer.geometry, choice.sparse) if choice.sparse is not None else None
    share = channels / layer.geometry.in_channels if channels is not None else 1.0
    size = round(kept.own[choice.r] * share) + kept.reach[choice.r]
    alone, passing = (_added_flops(layer, choice, channels, hands_back) for hands_back in (False, True))
    points = round(POINTS * scores.of(layer.name, choice.r) * share)
    return Offer(choice, True, (size, alone), (size, passing + passed), points)


def _added_flops(layer: Layer, choice: Choice, channels: int | None, hands_back: bool) -> int:
    """What training adds to the forward pass."""
    assert layer.geometry is not None
    flops: Flops
    if choice.do == FILTER and choice.r is not None:
        flops = filtered_flops(layer.geometry, choice.r, False, hands_back, channels)
    else:
        flops = exact_flops(layer.geometry, hands_back, channels)
    return flops.total - flops.forward


def _count_bytes(
    job: Job, traced: Traced, layers: Sequence[Layer], chosen: Sequence[str], edges: Sequence[int], progress: Progress
) -> tuple[dict[str, _Bytes], int]:
    """By layer; and the least of what belongs to none of them (the head's input, the loss)."""
    payers = _payers(layers, chosen)
    kept = {name: _Bytes({}, {}) for name in chosen}
    rest = []
    ways: list[int | None] = [None, *edges]
    for r in ways:
        progress(f"counting bytes, {'exact' if r is None else f'r={r}'}")
        trained = tuple(
            replace(layer, r=None if layer.role == "head" or layer.name not in kept else r)
            for layer in traced.plan.trained
        )
        step = traced.training.duplicate(replace(traced.plan, trained=trained))
        winograd = allowed_algorithms(job, "cpu", choose_edge)  # which changes no byte that is kept
        step = pipeline.run(step, pipeline.training_passes(job.optimizer, job.calculus, winograd))
        own, reach, others = _share_out(kept_tensors(step), payers)
        rest.append(others)
        for name in chosen:
            kept[name].own[r], kept[name].reach[r] = own.get(name, 0), reach.get(name, 0)
    return kept, min(rest)


def _share_out(rows: Sequence[Kept], payers: Mapping[str, str]) -> tuple[dict[str, int], dict[str, int], int]:
    own: dict[str, int] = {}
    reach: dict[str, int] = {}
    others = 0
    for row in rows:
        payer = payers.get(row.layer)
        if payer is None:
            others += row.bytes
        elif payer == row.layer and (row.kind == "x_tilde" or row.why == EXACT_INPUT):
            own[payer] = own.get(payer, 0) + row.bytes
        else:
            reach[payer] = reach.get(payer, 0) + row.bytes
    return own, reach, others


def _payers(layers: Sequence[Layer], chosen: Sequence[str]) -> dict[str, str]:
    """Which of the chosen layers pays for what is kept at a layer: itself, or the last chosen one before it.

    What lies behind the last chosen convolution's own norms (the head) is paid by every plan.
    """
    payers: dict[str, str] = {}
    payer: str | None = None
    for layer in layers:
        if layer.name in chosen:
            payer = layer.name
        if payer is not None and layer.kind != "linear":
            payers[layer.name] = payer
    return payers


def _passed_flops(layers: Sequence[Layer], chosen: Sequence[str]) -> dict[str, int]:
    """Gradients through convolutions that no plan trains (projections), laid to the chosen layer before them."""
    payers = _payers(layers, chosen)
    passed: dict[str, int] = {}
    for layer in layers:
        payer = payers.get(layer.name)
        if layer.geometry is not None and layer.name not in chosen and payer is not None:
            passed[payer] = passed.get(payer, 0) + exact_flops(layer.geometry).input_gradient
    return passed
