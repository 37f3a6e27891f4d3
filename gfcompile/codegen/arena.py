"""Place every temporary at a fixed offset of one arena, for the whole program, before it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from gfcompile.codegen.program import ALIGNMENT, Program

__all__ = ["ALIGNMENT", "Placement", "plan_arena"]

ROUNDS = 24  # of repair; each places every slot once


@dataclass(frozen=True)
class Placement:
    """Where the buffers of a program lie; `bytes` is the size of the arena.

    `offsets` by buffer, for all that lie in the arena. `shared` maps an output to the input whose slot it takes over:
    the input dies at that very call. `overwrites` maps an updated result to the state buffer it replaces, `delivered`
    a result to its position among the program's results: it is written to where the caller wants it.
    """

    offsets: dict[int, int]
    overwrites: dict[int, int]
    bytes: int
    shared: dict[int, int] = field(default_factory=dict)
    delivered: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Slot:
    """A piece of the arena, alive from call `first` to call `last`, for buffers that follow each other in it."""

    buffers: tuple[int, ...]
    first: int
    last: int
    bytes: int

    @property
    def life(self) -> int:
        return self.last - self.first + 1


def plan_arena(program: Program, guard: int = 0) -> Placement:
    """The smallest placement found, with outputs written over their inputs if that makes it smaller.

    Sharing has to pay: a kernel that runs in place is compiled without the promise that its operands lie apart.
    `guard` bytes, a multiple of the alignment, stay free on both sides of every living slot: a debug build watches
    them.
    """
    shared = _find_shared(program)
    slots = _make_slots(program, shared)
    size, starts = _place(slots, guard)
    apart = _make_slots(program, {})
    if _most_alive(apart, guard) <= size:
        least, elsewhere = _place(apart, guard)
        if least <= size:
            slots, shared, size, starts = apart, {}, least, elsewhere
    offsets = {buffer: start for start, slot in zip(starts, slots, strict=True) for buffer in slot.buffers}
    return Placement(offsets, program.overwrites(), size, shared, program.delivered())


def _find_shared(program: Program) -> dict[int, int]:
    """Every output that may take the slot of an input which dies at its call."""
    placed, last = program.temporaries(), program.last_reads()
    shared: dict[int, int] = {}
    for index, call in enumerate(program.calls):
        dying = {buffer for buffer in call.inputs if last[buffer] == index}
        shared |= program.heirs(call, placed & (dying | set(call.outputs)))
    return shared


def _make_slots(program: Program, shared: Mapping[int, int]) -> list[_Slot]:
    placed, last = program.temporaries(), program.last_reads()
    owner: dict[int, int] = {}  # buffer -> the first one of its slot
    chains: dict[int, list[int]] = {}
    births: dict[int, int] = {}
    for index, call in enumerate(program.calls):
        for buffer in call.born:
            if buffer in placed:
                owner[buffer] = owner[shared[buffer]] if buffer in shared else buffer
                chains.setdefault(owner[buffer], []).append(buffer)
                births[buffer] = index
    return [
        _Slot(tuple(chain), births[first], last[chain[-1]], program.buffers[first].slot_bytes)
        for first, chain in chains.items()
    ]


def _place(slots: Sequence[_Slot], guard: int) -> tuple[int, list[int]]:
    """(size of the arena, start of every slot): the best of several orders of choice, then repaired.

    To repair is to let a slot that ends at the top choose first, until the top is as low as the bytes alive.
    """
    together, bound = _find_together(slots), _most_alive(slots, guard)
    plans = []
    for key in _ORDERS:
        order = sorted(range(len(slots)), key=lambda index: key(slots[index]))
        plans.append((*_fit(slots, together, order, guard), order))
    top, starts, order = min(plans, key=lambda plan: plan[0])
    best = starts
    for _ in range(ROUNDS):
        if top <= bound:
            break
        highest = max(order, key=lambda index: starts[index] + slots[index].bytes)
        order = [highest, *(index for index in order if index != highest)]
        height, starts = _fit(slots, together, order, guard)
        if height < top:
            top, best = height, starts
    return top, best


_UNPLACED = np.int64(1) << 62  # starts above every other
_ORDERS: tuple[Callable[[_Slot], tuple[int, ...]], ...] = (  # who chooses first
    lambda slot: (-slot.bytes, slot.first, slot.last),
    lambda slot: (-slot.bytes * slot.life, slot.first),
    lambda slot: (-slot.life, -slot.bytes, slot.first),
    lambda slot: (slot.first, -slot.last, -slot.bytes),
)


def _fit(
    slots: Sequence[_Slot], together: Sequence[np.ndarray], order: Sequence[int], guard: int
) -> tuple[int, list[int]]:
    """(height, starts): each slot in turn takes the lowest gap that is free over its whole life.

    Arrays, since a deep network's slots live with thousands of others.
    """
    starts, stops = np.full(len(slots), _UNPLACED), np.zeros(len(slots), np.int64)
    for index in order:
        size = slots[index].bytes + guard  # the guard below is the neighbour's, or the arena's first bytes
        lows = starts[together[index]]
        by_start = np.argsort(lows)
        lows = lows[by_start]
        highs = np.maximum.accumulate(stops[together[index]][by_start], dtype=np.int64)
        gaps = np.concatenate(([guard], np.maximum(highs, guard)))  # free from here on, up to the next one's start
        found = int(np.argmax(gaps + size <= np.append(lows, _UNPLACED)))
        starts[index], stops[index] = gaps[found], gaps[found] + size
    return int(stops.max(initial=0)), starts.tolist()


def _find_together(slots: Sequence[_Slot]) -> list[np.ndarray]:
    """For each slot those alive at the same time as it."""
    together: list[list[int]] = [[] for _ in slots]
    alive: list[int] = []
    for index in sorted(range(len(slots)), key=lambda index: slots[index].first):
        alive = [other for other in alive if slots[other].last >= slots[index].first]
        for other in alive:
            together[index].append(other)
            together[other].append(index)
        alive.append(index)
    return [np.array(others, np.int64) for others in together]


def _most_alive(slots: Sequence[_Slot], guard: int) -> int:
    """The largest sum of slots alive at one call: no placement is smaller."""
    change: dict[int, int] = {}
    for slot in slots:
        change[slot.first] = change.get(slot.first, 0) + slot.bytes + guard
        change[slot.last + 1] = change.get(slot.last + 1, 0) - slot.bytes - guard
    return guard + max(accumulate(change[call] for call in sorted(change)), default=0)
