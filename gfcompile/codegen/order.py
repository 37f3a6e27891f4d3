"""The order of a program's calls: at its worst call, as few bytes of the arena alive as can be found.

before: the traced order        ==>  after: a legal order whose peak of live bytes is never higher
    g2 = grad(w2); g1 = grad(w1)         g2 = grad(w2); update(w2, g2)
    update(w2, g2); update(w1, g1)       g1 = grad(w1); update(w1, g1)

Legal is: a value is produced before it is read, an in-place update waits for every other reader of the old value, and
what the trace computes up to the loss stays before it (`Program.saved` counts what crosses).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gfcompile.errors import ContractError
from gfcompile.step import Role

if TYPE_CHECKING:  # program.py asks for the order of what it has read
    from gfcompile.codegen.program import Call, Program

BEAM = 8  # states kept at a step: wider beams found nothing better on the models of the tests
_DATA = (Role.INPUT, Role.FEATURE, Role.TARGET, Role.SAMPLE_WEIGHT)


def order_calls(program: Program) -> list[Call]:
    """The calls in the best order found; of equal ones, that nearest to the trace. Same program, same order."""
    traced = _legal_order(program)
    graph = _Graph(program, traced)
    state = graph.start()
    for half in _halves(program, traced):
        state = graph.search(state, half)
    return [traced[index] for index in state.order()]


def _legal_order(program: Program) -> list[Call]:
    """The traced order, except that an in-place update waits for every other reader of the old value."""
    before = _dependencies(program, program.calls)
    done = 0
    order: list[int] = []
    waiting = list(range(len(program.calls)))
    while waiting:
        ready = next((index for index in waiting if not before[index] & ~done), None)
        if ready is None:
            raise ContractError(f"program '{program.name}': an update overwrites a value that its own gradient needs")
        waiting.remove(ready)
        done |= 1 << ready
        order.append(ready)
    return [program.calls[index] for index in order]


def _dependencies(program: Program, calls: list[Call]) -> list[int]:
    """For each call the set, as bits, of the calls that must have run before it."""
    producer = {buffer: index for index, call in enumerate(calls) for buffer in call.outputs}
    updater = {state: producer[output] for output, state in program.overwrites().items()}
    before = [0] * len(calls)
    for index, call in enumerate(calls):
        for buffer in call.inputs:
            if buffer in producer:
                before[index] |= 1 << producer[buffer]
            if updater.get(buffer, index) != index:
                before[updater[buffer]] |= 1 << index
    return before


def _halves(program: Program, calls: list[Call]) -> list[range]:
    """The calls up to the loss and those after it; all of them as one where there is no loss."""
    roles = [value.role for value in program.outputs]
    if Role.LOSS not in roles:
        return [range(len(calls))]
    loss = program.results[roles.index(Role.LOSS)]
    boundary = next(index for index, call in enumerate(calls) if loss in call.outputs) + 1
    return [range(boundary), range(boundary, len(calls))]


@dataclass(frozen=True)
class _State:
    """A beginning of an order, its calls last first. Sets of calls are bits of an int.

    `live` are the bytes alive now, `peak` the most there were; `ready` the calls that could run next, after the
    preparations they need.
    """

    done: int
    live: int
    peak: int
    ready: frozenset[int]
    path: tuple[int, Any] | None = None

    def order(self) -> list[int]:
        order, path = [], self.path
        while path is not None:
            index, path = path
            order.append(index)
        return order[::-1]


class _Graph:
    """Calls by number, in a legal order: what each waits for, brings to life and lets die."""

    def __init__(self, program: Program, calls: list[Call]) -> None:
        self.program, self.calls = program, calls
        self.before = _dependencies(program, calls)
        dataless = self._find_dataless()
        forward, *backward = _halves(program, calls)
        if backward:
            loss = forward.stop - 1
            dataless &= ~(1 << loss)
            self.before[loss] |= (1 << loss) - 1  # it closes the forward half
            for index in backward[0]:
                self.before[index] |= 1 << loss
        self.preparations = self._find_preparations(dataless)
        placed = program.temporaries()
        self.size = {buffer: program.buffers[buffer].slot_bytes for buffer in placed}
        self.inputs = [[buffer for buffer in dict.fromkeys(call.inputs) if buffer in placed] for call in calls]
        self.outputs = [[buffer for buffer in call.born if buffer in placed] for call in calls]
        self.may_inherit = [bool(program.heirs(call, placed)) for call in calls]
        self.readers = dict.fromkeys(placed, 0)
        for index, buffers in enumerate(self.inputs):
            for buffer in buffers:
                self.readers[buffer] |= 1 << index
        prepared = 0
        for others in self.preparations:
            prepared |= others
        self.main = [index for index in range(len(calls)) if not prepared >> index & 1]
        self.waits_for = [before & ~prepared for before in self.before]
        self.followers: list[list[int]] = [[] for _ in calls]
        for index in self.main:
            for other in _bits(self.waits_for[index]):
                self.followers[other].append(index)
        self.neighbours = self._find_neighbours()
        for buffer in placed & set(program.results):
            self.readers[buffer] |= 1 << len(calls)  # a reader that never comes

    def _find_dataless(self) -> int:
        """The calls that depend on the state only, such as one that transposes a weight."""
        dataless = 0
        for index, call in enumerate(self.calls):
            values = [self.program.buffers[buffer].value for buffer in call.inputs]
            reads_data = any(value is not None and value.role in _DATA for value in values)
            if not reads_data and not self.before[index] & ~dataless:
                dataless |= 1 << index
        return dataless

    def _find_preparations(self, dataless: int) -> list[int]:
        """For each call the dataless ones it needs, of those that serve one with data: they wait to be needed."""
        found = [0] * len(self.calls)
        for index, before in enumerate(self.before):
            for other in _bits(before & dataless):
                found[index] |= 1 << other | found[other]
        serving = 0
        for index, others in enumerate(found):
            serving |= 0 if dataless >> index & 1 else others
        return [0 if serving >> index & 1 else others & serving for index, others in enumerate(found)]

    def _find_neighbours(self) -> list[frozenset[int]]:
        """For each call those it may make free to run: they wait for it, or read a buffer that it reads too."""
        found: list[set[int]] = []
        for buffers in self.inputs:
            found.append(set())
            for buffer in buffers:
                found[-1].update(_bits(self.readers[buffer]))
        for index, before in enumerate(self.before):
            for other in _bits(before):
                found[other].add(index)
        return [frozenset(others - {index}) for index, others in enumerate(found)]

    def start(self) -> _State:
        return _State(0, 0, 0, frozenset(index for index in self.main if not self.waits_for[index]))

    def outcome(self, state: _State, index: int) -> tuple[int, int]:
        """Bytes alive during the call, and after it."""
        done = state.done | 1 << index
        dying = [buffer for buffer in self.inputs[index] if not self.readers[buffer] & ~done]
        born = self.outputs[index]
        worst = state.live + sum(self.size[buffer] for buffer in born)
        after = worst - sum(self.size[buffer] for buffer in dying)
        after -= sum(self.size[buffer] for buffer in born if not self.readers[buffer])
        if dying and self.may_inherit[index]:
            worst -= sum(self.size[buffer] for buffer in self.program.heirs(self.calls[index], {*dying, *born}))
        return worst, after

    def run(self, state: _State, index: int) -> _State:
        worst, after = self.outcome(state, index)
        done = state.done | 1 << index
        woken = [at for at in self.followers[index] if not self.waits_for[at] & ~done]
        ready = (state.ready - {index}).union(woken)
        return _State(done, after, max(state.peak, worst), ready, (index, state.path))

    def advance(self, state: _State, index: int) -> _State:
        """Run the call, what has to prepare it, and after each whatever takes nothing more.

        That can only help the calls after it. Updates are of this kind.
        """
        for new in (*_bits(self.preparations[index]), index):
            if not state.done >> new & 1:
                state = self._run_free(self.run(state, new), self.neighbours[new])
        return state

    def _run_free(self, state: _State, suspects: frozenset[int]) -> _State:
        while suspects:
            suspect = min(suspects)
            suspects -= {suspect}
            if state.done >> suspect & 1 or self.before[suspect] & ~state.done:
                continue
            if max(self.outcome(state, suspect)) <= state.live:
                state = self.run(state, suspect)
                suspects |= self.neighbours[suspect]
        return state

    def follow(self, state: _State, half: range) -> _State:
        """The traced order, but for the calls that take nothing."""
        for index in half:
            if not state.done >> index & 1:
                state = self.advance(state, index)
        return state

    def search(self, state: _State, half: range) -> _State:
        """Beam search from the traced order down: each kept state runs each call that is ready, the best go on."""
        best = self.follow(state, half)
        goal = (1 << half.stop) - 1
        states = [state]
        while states:
            reached: dict[int, _State] = {}
            for old in states:
                for index in sorted(old.ready):
                    new = self.advance(old, index)
                    known = reached.get(new.done)
                    if new.peak < best.peak and (known is None or (new.peak, new.live) < (known.peak, known.live)):
                        reached[new.done] = new
            best = min([best, *(new for new in reached.values() if not goal & ~new.done)], key=lambda new: new.peak)
            going = [new for new in reached.values() if goal & ~new.done and new.peak < best.peak]
            states = sorted(going, key=lambda new: (new.peak, new.live))[:BEAM]
        return best


def _bits(number: int) -> Iterator[int]:
    """The members of a set of calls, in order."""
    while number:
        low = number & -number
        yield low.bit_length() - 1
        number ^= low
