"""Where a template asks: a choice has a name, its options, and the one that is taken if nobody knows better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from tvm.s_tir.schedule import ScheduleError

Option = int | str | tuple[int, ...]
Decisions = Mapping[str, Option]  # of one kernel, by the choice's name
_Option = TypeVar("_Option", bound=Option)
TEMPLATES = 1  # grows when the templates' choices change their meaning: older trials then no longer count


class Choices:
    """Takes what the template proposes."""

    def pick(self, name: str, options: Sequence[_Option], proposed: _Option) -> _Option:
        """One of the options. The proposal is among them; they may depend on what was picked before."""
        return proposed


DEFAULTS = Choices()


class Decided(Choices):
    """Takes what was decided, and what is proposed where nothing was; a decision that is no option is an error."""

    def __init__(self, decisions: Decisions) -> None:
        self._decisions = decisions

    def pick(self, name: str, options: Sequence[_Option], proposed: _Option) -> _Option:
        if name not in self._decisions:
            return proposed
        for option in options:
            if option == self._decisions[name]:
                return option
        raise ScheduleError(f"{name}: '{self._decisions[name]}' is no option")


def nearest(options: Sequence[int], most: int, around: int) -> list[int]:
    """At most so many of the sorted options, those around a value."""
    kept = sorted(options, key=lambda option: abs(_ratio(option, around)))[:most]
    return sorted(kept)


def _ratio(a: int, b: int) -> float:
    return max(a, b) / max(1, min(a, b)) - 1
