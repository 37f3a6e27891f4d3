"""Every plan that no other beats: fewer bytes, fewer FLOPs or a better score. Exact, by dynamic programming.

Costs are sums over layers. A gradient travels back to the first trained layer and no further, so layers before that
cost nothing, and the first itself hands no gradient on; every later layer passes the gradient, frozen ones too.
Going from the last layer to the first, two ways to treat the later layers differ in three sums and in nothing else, so
the one that is no better in any of them can be dropped.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

LIMITS = 4  # of FLOPs, in a thinned front
NEARBY = 2  # candidates that a search tries beside those of halving
STEP = 1.03  # in bytes, of a staircase
LABELS = 4000  # more ways than this are thinned before the next layer: the front is then nearly, not surely, complete


@dataclass(frozen=True)
class Offer:
    """One thing that can be done with a layer: its bytes and FLOPs as the first trained layer, and where it passes the
    gradient on to layers before it; `points` is what it adds to the score. A frozen layer can only pass on."""

    choice: Hashable
    trains: bool
    first: tuple[int, int]
    passing: tuple[int, int]
    points: int


@dataclass(frozen=True)
class Candidate:
    """A whole plan: one choice per layer, in order of execution, and its sums."""

    choices: tuple[Hashable, ...]
    bytes: int
    flops: int
    points: int


def find_front(layers: Sequence[Sequence[Offer]], frozen: Hashable, base: tuple[int, int] = (0, 0)) -> list[Candidate]:
    """Candidates that none other beats, best score first; `base` is what every plan costs."""
    behind = [Candidate((), *base, 0)]
    found = [Candidate((frozen,) * len(layers), *base, 0)]
    for index in reversed(range(len(layers))):
        before = (frozen,) * index
        passing = []
        for label in behind:
            for offer in layers[index]:
                passing.append(_add(label, offer, offer.passing))
                if offer.trains:
                    found.append(_add(label, offer, offer.first, before))
        found = undominated(found)
        behind = _thin(undominated(passing))
    return sorted(found, key=lambda each: (-each.points, each.bytes, each.flops))


def undominated(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Without those that another matches or beats in all three; of equals the first stays."""
    kept: list[Candidate] = []
    flops: list[int] = []  # a staircase of what was kept so far: more FLOPs, more points
    points: list[int] = []
    for each in sorted(candidates, key=lambda each: (each.bytes, each.flops, -each.points)):
        at = bisect_right(flops, each.flops)
        if at and points[at - 1] >= each.points:
            continue
        kept.append(each)
        start = at - 1 if at and flops[at - 1] == each.flops else at
        stop = at
        while stop < len(points) and points[stop] <= each.points:
            stop += 1
        flops[start:stop], points[start:stop] = [each.flops], [each.points]
    return kept


def staircase(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Those that none beats in bytes and score, whatever the FLOPs; best score, and so most bytes, first.

    Of those that differ by less than STEP in bytes one is enough: it takes few placements to choose among steps.
    """
    kept: list[Candidate] = []
    for each in sorted(candidates, key=lambda each: (each.bytes, -each.points, each.flops)):
        if not kept or each.points > kept[-1].points:
            kept.append(each)
    steps = kept[-1:]
    for each in reversed(kept[:-1]):
        if each.bytes * STEP <= steps[-1].bytes or each is kept[0]:
            steps.append(each)
    return steps


def search(ordered: Sequence[Candidate], fits: Callable[[Candidate], bool]) -> Candidate | None:
    """The first that fits, asking of few: halving, then the NEARBY ones before what that found.

    Exact where all after one that fits fit too. Where not, still: whoever lets more of them fit never gets a later
    one. Where two differ on the way, the one who refuses ends after the candidate that the other accepts; and the
    nearby ones that the one finds are nearby for the other, or after what it has.
    """
    low, high = 0, len(ordered)
    while low < high:
        middle = (low + high) // 2
        if fits(ordered[middle]):
            high = middle
        else:
            low = middle + 1
    nearby = ordered[max(0, high - NEARBY) : high + 1]
    return next((each for each in nearby if fits(each)), None)


def spread(candidates: Sequence[Candidate], count: int) -> list[Candidate]:
    """About `count` of a front: the cheapest at evenly spaced scores, for each of a few limits of FLOPs, with the best
    and the cheapest of all. Which they are does not depend on a budget."""
    if len(candidates) <= count:
        return list(candidates)
    ordered = sorted(candidates, key=lambda each: (-each.points, each.bytes, each.flops))
    flops = sorted(each.flops for each in ordered)
    chosen = {ordered[0]: None, min(ordered, key=lambda each: (each.bytes, each.flops)): None}
    levels = max(2, count // LIMITS)
    for limit in (flops[len(flops) * part // LIMITS - 1] for part in range(1, LIMITS + 1)):
        within = [each for each in ordered if each.flops <= limit]
        best, least = within[0].points, within[-1].points
        cheapest, seen = within[0], 0
        for step in range(levels):
            while seen < len(within) and within[seen].points >= best - (best - least) * step / (levels - 1):
                cheapest = min(cheapest, within[seen], key=lambda each: (each.bytes, each.flops))
                seen += 1
            chosen[cheapest] = None
    return sorted(chosen, key=lambda each: (-each.points, each.bytes, each.flops))


def _add(label: Candidate, offer: Offer, cost: tuple[int, int], before: tuple[Hashable, ...] = ()) -> Candidate:
    return Candidate(
        (*before, offer.choice, *label.choices),
        label.bytes + cost[0],
        label.flops + cost[1],
        label.points + offer.points,
    )


def _thin(labels: list[Candidate]) -> list[Candidate]:
    return labels if len(labels) <= LABELS else spread(labels, LABELS)
