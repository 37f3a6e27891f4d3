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
from operator import le
from typing import TypeAlias

import numpy as np

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


_Chain: TypeAlias = "tuple[Hashable, _Chain] | None"


@dataclass(frozen=True)
class _Ways:
    """Ways to treat the last layers: their bytes, FLOPs and points, negative, a row each; and their choices as chains,
    the first layer's first, which share their ends. Millions are looked at, and few are kept."""

    sums: np.ndarray
    chains: Sequence[_Chain]

    def and_before(self, offers: Sequence[Offer], costs: Sequence[tuple[int, int]], others: _Ways | None) -> _Ways:
        """All of them with one more layer, which runs before theirs, and the others, as far as none beats them."""
        added = np.array([(*cost, -offer.points) for offer, cost in zip(offers, costs, strict=True)], np.int64)
        sums = (self.sums[:, None] + added.reshape(1, -1, 3)).reshape(-1, 3)
        known = [] if others is None else others.chains
        if others is not None:
            sums = np.concatenate([others.sums, sums])
        kept = undominated(sums)
        chains = []
        for at in kept:
            way, offer = divmod(at - len(known), len(offers))
            chains.append(known[at] if at < len(known) else (offers[offer].choice, self.chains[way]))
        return _Ways(sums[kept], chains)

    def thinned(self) -> _Ways:
        if len(self.chains) <= LABELS:
            return self
        kept = _spread(self.sums, LABELS)
        return _Ways(self.sums[kept], [self.chains[at] for at in kept])

    def candidates(self, count: int, frozen: Hashable) -> list[Candidate]:
        """Of `count` layers: those before a chain are frozen."""
        found = []
        for (size, flops, lost), chain in zip(self.sums.tolist(), self.chains, strict=True):
            choices = []
            while chain is not None:
                choice, chain = chain
                choices.append(choice)
            found.append(Candidate(((frozen,) * (count - len(choices)) + tuple(choices)), size, flops, -lost))
        return found


def find_front(layers: Sequence[Sequence[Offer]], frozen: Hashable, base: tuple[int, int] = (0, 0)) -> list[Candidate]:
    """Candidates that none other beats, best score first; `base` is what every plan costs."""
    behind = found = _Ways(np.array([[*base, 0]], np.int64), [None])
    for layer in reversed(layers):
        offers = _unbeaten(layer)
        trained = [offer for offer in offers if offer.trains]
        found = behind.and_before(trained, [offer.first for offer in trained], found)
        behind = behind.and_before(offers, [offer.passing for offer in offers], None).thinned()
    return sorted(found.candidates(len(layers), frozen), key=lambda each: (-each.points, each.bytes, each.flops))


def undominated(sums: np.ndarray) -> list[int]:
    """Places of the rows that no other matches or beats in all three; of equals the first stays."""
    kept: list[int] = []
    flops: list[int] = []  # a staircase of what was kept so far: more FLOPs, less lost
    lost: list[int] = []
    order = np.lexsort((sums[:, 2], sums[:, 1], sums[:, 0]))
    for place, (work, points) in zip(order.tolist(), sums[order, 1:].tolist(), strict=True):
        at = bisect_right(flops, work)
        if at and lost[at - 1] <= points:
            continue
        kept.append(place)
        start = at - 1 if at and flops[at - 1] == work else at
        stop = at
        while stop < len(lost) and lost[stop] >= points:
            stop += 1
        flops[start:stop], lost[start:stop] = [work], [points]
    return kept


def _unbeaten(offers: Sequence[Offer]) -> list[Offer]:
    """Without those that another of the same layer beats wherever the layer stands: no plan of the front has them."""

    def costs(offer: Offer) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        return (*offer.first, -offer.points), (*offer.passing, -offer.points)

    def beats(one: Offer, other: Offer) -> bool:
        pairs = list(zip(costs(one), costs(other), strict=True))
        return all(ours != theirs and all(map(le, ours, theirs)) for ours, theirs in pairs)

    return [
        each for each in offers if not (each.trains and any(other.trains and beats(other, each) for other in offers))
    ]


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


def most_asked(count: int) -> int:
    """Of a row of so many, how many a search asks at most. Halving has asked the one before what it found."""
    return count.bit_length() + NEARBY - 1


def spread(candidates: Sequence[Candidate], count: int) -> list[Candidate]:
    """About `count` of a front: the cheapest at evenly spaced scores, for each of a few limits of FLOPs, with the best
    and the cheapest of all. Which they are does not depend on a budget."""
    sums = np.array([(each.bytes, each.flops, -each.points) for each in candidates], np.int64).reshape(-1, 3)
    return [candidates[at] for at in _spread(sums, count)]


def _spread(rows: np.ndarray, count: int) -> list[int]:
    """Places of those that are chosen among rows of bytes, FLOPs and lost points; the fewest lost points first."""
    sums = rows.tolist()
    ordered = sorted(range(len(sums)), key=lambda at: (sums[at][2], *sums[at][:2]))
    if len(sums) <= count:
        return ordered
    flops = sorted(each[1] for each in sums)
    chosen = {ordered[0], min(ordered, key=lambda at: sums[at][:2])}
    levels = max(2, count // LIMITS)
    for limit in (flops[len(flops) * part // LIMITS - 1] for part in range(1, LIMITS + 1)):
        within = [at for at in ordered if sums[at][1] <= limit]
        least, most = sums[within[0]][2], sums[within[-1]][2]
        cheapest, seen = within[0], 0
        for step in range(levels):
            while seen < len(within) and sums[within[seen]][2] <= least + (most - least) * step / (levels - 1):
                cheapest = min(cheapest, within[seen], key=lambda at: sums[at][:2])
                seen += 1
            chosen.add(cheapest)
    return [at for at in ordered if at in chosen]
