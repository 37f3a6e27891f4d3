"""One search among candidates: how far it is, how long it may still take, and the best that it has found."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from gfcompile.budget.arenas import Arenas, Placed, key_of
from gfcompile.budget.front import Candidate
from gfcompile.budget.score import POINTS
from gfcompile.interrupts import raise_noted
from gfcompile.progress import Progress
from gfcompile.report.units import in_bytes
from gfcompile.settings.planning import Choice

MINUTES_FROM = 120  # seconds


class Asking:
    """Asks for the arenas of candidates, at most `most` of them, and says so before each that takes time.

    `best` is the candidate with the best score of those that fit so far.
    """

    def __init__(
        self,
        arenas: Arenas,
        choices: Callable[[Candidate], Mapping[str, Choice]],
        memory: int,
        most: int,
        progress: Progress,
    ) -> None:
        self.arenas, self.choices, self.memory, self.most, self.progress = arenas, choices, memory, most, progress
        self.asked: dict[Candidate, Placed] = {}
        self.best: Candidate | None = None
        self.placed, self.seconds = 0, 0.0

    def __call__(self, candidate: Candidate) -> Placed:
        choices = self.choices(candidate)
        if key_of(choices) not in self.arenas.known:
            raise_noted()
            self.progress(self._how_far())
            start = time.monotonic()
            self.arenas(choices)
            self.placed, self.seconds = self.placed + 1, self.seconds + time.monotonic() - start
        found = self.asked[candidate] = self.arenas(choices)
        is_better = self.best is None or candidate.points > self.best.points
        if found.arena_bytes <= self.memory and is_better:
            self.best = candidate
        return found

    def fits(self, candidate: Candidate) -> bool:
        """Whether its arena keeps to the budget."""
        return self(candidate).arena_bytes <= self.memory

    @property
    def least_bytes(self) -> int:
        """The smallest arena of those asked for."""
        return min(placed.arena_bytes for placed in self.asked.values())

    def stopped(self) -> str:
        """In words, for a search that did not end."""
        return (
            f"the search was stopped with {self.placed} of at most {self.most} plans placed: the best of these that"
            " fits; a whole search may find a better one"
        )

    def _how_far(self) -> str:
        text = f"placing plan {self.placed + 1} of at most {self.most}"
        if self.placed:
            left = self.seconds / self.placed * (self.most - self.placed)
            text += f", about {left / 60:.0f} min left" if left >= MINUTES_FROM else f", about {left:.0f} s left"
        if self.best is not None:
            arena = in_bytes(self.asked[self.best].arena_bytes)
            text += f", best so far: score {self.best.points / POINTS:.3f}, arena {arena}"
        return text
