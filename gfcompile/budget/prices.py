"""What each choice costs and brings, a layer at a time: bytes and FLOPs counted, the score measured or estimated.

Bytes are read off analysed graphs: the training step is rewritten once for each way (exact, each r) with every layer
treated so, and what it keeps is laid to the layers (`report/kept.py`): the input that a weight gradient reads is paid
by who is trained, masks and other statistics by every layer that a gradient reaches. In a mixed plan neighbours share
grids, so the sum is an estimate; a plan is judged by its placed arena.

FLOPs are those of the convolutions (`convolution_calls.py`), and never too few: where branches make it unclear whether
a gradient passes a convolution after the first trained layer, it does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from gfcompile.budget.choices import FROZEN, choices_of
from gfcompile.budget.convolution_calls import Call
from gfcompile.budget.front import Offer
from gfcompile.budget.score import POINTS, Scores
from gfcompile.geometry.channel_draws import drawn_channels
from gfcompile.geometry.winograd import choose_edge
from gfcompile.job import Job, Traced
from gfcompile.passes import pipeline
from gfcompile.plan import Layer
from gfcompile.progress import Progress, silent
from gfcompile.report.kept import EXACT_INPUT, kept_tensors
from gfcompile.report.memory_schema import Kept
from gfcompile.settings.planning import Choice
from gfcompile.stages import allowed_algorithms

Cost = tuple[int, int]  # bytes, FLOPs


@dataclass(frozen=True)
class Prices:
    """`offers[i]` are those of `layers[i]`, the convolutions that may be trained, in order of execution; `heads` are
    trained by every plan, exactly. `base` is what every plan costs, in bytes and FLOPs."""

    layers: tuple[str, ...]
    heads: tuple[str, ...]
    offers: tuple[tuple[Offer, ...], ...]
    base: Cost


@dataclass
class _Bytes:
    """Kept for one layer, by way (None: exact, else r): its input, and what the gradient needs to get there."""

    own: dict[int | None, int]
    reach: dict[int | None, int]


def price(
    job: Job,
    traced: Traced,
    calls: Mapping[str, Sequence[Call]],
    chosen: Sequence[str],
    heads: Sequence[str],
    edges: Sequence[int],
    shares: Sequence[float],
    scores: Scores,
    progress: Progress = silent,
) -> Prices:
    """`traced` trains all that may be trained, exactly; `chosen` are the convolutions to decide about."""
    by_name = {layer.name: layer for layer in traced.layers}
    kept, size = _count_bytes(job, traced, chosen, heads, edges, progress)
    flops, passed = _shared_flops(traced.layers, calls, chosen, heads)
    reached = _behind_heads(traced.layers, heads)
    offers = []
    for name in chosen:
        layer = by_name[name]
        options = choices_of(edges, shares, layer.unfilterable is None, layer.undrawable is None)
        made = [_offer(layer, choice, calls[name], kept[name], passed.get(name, 0), scores) for choice in options]
        if name in reached:
            through = made[0].passing
            size, flops = size + through[0], flops + through[1]
            made = [_beyond(offer, through) for offer in made]
        offers.append(tuple(made))
    return Prices(tuple(chosen), tuple(heads), tuple(offers), (size, flops))


def _offer(layer: Layer, choice: Choice, calls: Sequence[Call], kept: _Bytes, passed: int, scores: Scores) -> Offer:
    if choice == FROZEN:
        through = sum(call.flops for call in calls) + passed
        return Offer(choice, False, (0, 0), (kept.reach[None], through), 0)
    channels = None
    if choice.sparse is not None and layer.geometry is not None:
        channels = drawn_channels(layer.geometry, choice.sparse)
    share = 1.0 if channels is None or layer.geometry is None else channels / layer.geometry.in_channels
    size = round(kept.own[choice.r] * share) + kept.reach[choice.r]
    # of a layer that is called twice, the later call hands a gradient back to the earlier one
    alone, passing = (
        sum(call.added(choice.r, hands_back, channels) for call in calls) + passed
        for hands_back in (len(calls) > 1, True)
    )
    points = round(POINTS * scores.of(layer.name, choice.r) * share)
    return Offer(choice, True, (size, alone), (size, passing), points)


def _beyond(offer: Offer, through: Cost) -> Offer:
    """Of a layer that every plan's gradient passes: what it costs more than being passed, wherever it stands."""
    if not offer.trains:
        return replace(offer, passing=(0, 0))
    more = (offer.passing[0] - through[0], offer.passing[1] - through[1])
    return replace(offer, first=more, passing=more)


def _behind_heads(layers: Sequence[Layer], heads: Sequence[str]) -> set[str]:
    """Layers after the first that every plan trains: a gradient always gets there."""
    names = [layer.name for layer in layers]
    first = min((names.index(head) for head in heads), default=len(names))
    return set(names[first + 1 :])


def _shared_flops(
    layers: Sequence[Layer], calls: Mapping[str, Sequence[Call]], chosen: Sequence[str], heads: Sequence[str]
) -> tuple[int, dict[str, int]]:
    """What every plan counts; and what the gradient counts on its way to each chosen layer, through convolutions of
    which no plan decides (projections, a head): those between it and the next chosen one."""
    names = [layer.name for layer in layers]
    sums = {name: sum(call.flops for call in each) for name, each in calls.items()}
    reached = _behind_heads(layers, heads)
    base = sum(sums.values()) + sum(sums.get(head, 0) for head in heads)
    base += sum(2 * flops for name, flops in sums.items() if name not in names)
    # called again after others: a gradient may pass there to these, though the layer itself comes first
    again = [call for each in calls.values() for one, call in pairwise(each) if call.place > one.place + 1]
    base += sum(call.flops for call in again)
    passed: dict[str, int] = {}
    before: str | None = None
    for name in names:
        if name in chosen:
            before = name
        elif name in reached or (name in heads and len(calls.get(name, ())) > 1):
            base += sums.get(name, 0)
        elif before is not None:
            passed[before] = passed.get(before, 0) + sums.get(name, 0)
    return base, passed


def _count_bytes(
    job: Job, traced: Traced, chosen: Sequence[str], heads: Sequence[str], edges: Sequence[int], progress: Progress
) -> tuple[dict[str, _Bytes], int]:
    """By layer; and the least of what belongs to none of them (the heads' inputs, the loss)."""
    payers = _payers(traced.layers, chosen, heads)
    filtered = {layer.name for layer in traced.layers if layer.name in chosen and layer.unfilterable is None}
    kept = {name: _Bytes({}, {}) for name in chosen}
    rest = []
    ways: list[int | None] = [None, *edges]
    for r in ways:
        progress(f"counting bytes, {'exact' if r is None else f'r={r}'}")
        trained = tuple(replace(layer, r=r if layer.name in filtered else None) for layer in traced.plan.trained)
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


def _payers(layers: Sequence[Layer], chosen: Sequence[str], heads: Sequence[str]) -> dict[str, str]:
    """Which of the chosen layers pays for what is kept at a layer: itself, or the last chosen one before it.

    What is kept at a head is paid by every plan.
    """
    payers: dict[str, str] = {}
    payer: str | None = None
    for layer in layers:
        if layer.name in chosen:
            payer = layer.name
        if payer is not None and layer.name not in heads:
            payers[layer.name] = payer
    return payers
