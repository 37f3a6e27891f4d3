"""Which candidates of a kernel are worth a trial: near the best ones known, by the options that did well so far."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import log
from statistics import fmean

from gfcompile.codegen.schedules.choices import Option
from gfcompile.tuning.space import Candidate, Drawn

PARENTS = 3  # whose neighbours are looked at
_DRAWS = 24  # proposals that a place in a batch is chosen from
_FAILED = -1.0  # log of the ratio that a failed one counts as
_HOPE = 0.05  # log of a ratio: what an option nobody tried yet may bring


@dataclass(frozen=True)
class _Known:
    candidate: Candidate
    options: Mapping[str, tuple[Option, ...]]
    gain: float  # log of its ratio


class Search:
    """Of one kernel. Begins at what the templates propose themselves; `tell` it every result, then `ask` for more."""

    def __init__(self, templates: Iterable[Drawn], seed: int) -> None:
        self._random = random.Random(seed)
        self._starts = [_Known(drawn.candidate, drawn.options, 0.0) for drawn in templates]
        self._known: dict[object, _Known] = {}
        self._hints: list[Candidate] = []
        self._asked = {self._starts[0].candidate.key}  # the compiler's own: every trial measures it

    def tell(self, candidate: Candidate, options: Mapping[str, tuple[Option, ...]], ratio: float | None) -> None:
        """`candidate` is what came of it, `ratio` None where it does not count; told again, the last word counts."""
        gain = _FAILED if ratio is None else log(ratio)
        self._asked.add(candidate.key)
        self._known[candidate.key] = _Known(candidate, options, gain)

    def knows(self, key: object) -> bool:
        """Whether the candidate of this key was told."""
        return key in self._known

    def hint(self, candidate: Candidate) -> bool:
        """Have a candidate asked for next; False if it was before."""
        is_new = self._is_new(candidate)
        if is_new:
            self._hints.append(candidate)
        return is_new

    def ask(self, count: int) -> list[Candidate]:
        """At most so many that were not asked before; fewer where the space is nearly exhausted."""
        found: list[Candidate] = []
        others = [start.candidate for start in self._starts[1:]]  # other templates, as they come
        for candidate in (*self._hints, *others):
            if self._is_new(candidate) and len(found) < count:
                found.append(self._take(candidate))
        self._hints.clear()
        effects = self._effects()
        while len(found) < count:
            drawn = [candidate for candidate in (self._propose() for _ in range(_DRAWS)) if self._is_new(candidate)]
            if not drawn:
                break
            found.append(self._take(max(drawn, key=lambda candidate: self._hope(candidate, effects))))
        return found

    def _take(self, candidate: Candidate) -> Candidate:
        self._asked.add(candidate.key)
        return candidate

    def _is_new(self, candidate: Candidate) -> bool:
        return candidate.key not in self._asked

    def _propose(self) -> Candidate:
        """One of the best with one choice changed, now and then two."""
        best = sorted([*self._known.values(), self._starts[0]], key=lambda known: -known.gain)
        parent = self._random.choice(best[:PARENTS])
        names = [name for name, options in parent.options.items() if len(options) > 1]
        changes = min(len(names), 1 + (self._random.random() < 0.4))
        decisions = dict(parent.candidate.decisions)
        for name in self._random.sample(names, changes):
            others = [option for option in parent.options[name] if option != decisions[name]]
            decisions[name] = self._random.choice(others)
        return Candidate(parent.candidate.template, decisions)

    def _effects(self) -> dict[tuple[str, str, Option], float]:
        """How each option that was tried did on the average."""
        seen: dict[tuple[str, str, Option], list[float]] = {}
        for known in self._known.values():
            for name, option in known.candidate.decisions.items():
                seen.setdefault((known.candidate.template, name, option), []).append(known.gain)
        return {key: fmean(gains) for key, gains in seen.items()}

    def _hope(self, candidate: Candidate, effects: Mapping[tuple[str, str, Option], float]) -> float:
        """The sum over its options, with a little chance so that equal ones take turns."""
        known = (effects.get((candidate.template, name, option), _HOPE) for name, option in candidate.decisions.items())
        return sum(known) + self._random.uniform(0, _HOPE)
