"""The arena: whoever reads a buffer finds what was written there. Checked by playing programs over tagged memory."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gfcompile.codegen.arena import ALIGNMENT, Placement, plan_arena
from gfcompile.codegen.order import order_calls
from gfcompile.codegen.program import Buffer, Call, Program
from gfcompile.step import Role, Value
from tests.codegen.peaks import peak_bytes
from tests.codegen.test_program import PROGRAMS, analysed, programs, real_program, state_buffer

GUARD = -2


class Memory:
    """Which buffer's value each granule of the arena, each state tensor and each array of the caller holds now."""

    def __init__(self, program: Program, placement: Placement, guard: int = 0) -> None:
        self.program, self.placement, self.guard = program, placement, guard // ALIGNMENT
        self.arena = np.full(placement.bytes // ALIGNMENT, -1)
        self.state = {i: i for i, b in enumerate(program.buffers) if b.value or b.literal is not None}

    def holds(self, buffer: int) -> bool:
        if buffer in self.placement.offsets:
            return bool((self.arena[self.span(buffer)] == buffer).all())
        return self.state.get(self.root(buffer)) == buffer

    def write(self, buffer: int) -> None:
        if buffer in self.placement.offsets:
            self.arena[self.span(buffer)] = buffer
        else:
            self.state[self.root(buffer)] = buffer

    def root(self, buffer: int) -> int | str:
        if buffer in self.placement.delivered:
            return f"caller's {self.placement.delivered[buffer]}"
        return self.placement.overwrites.get(buffer, buffer)

    def span(self, buffer: int) -> slice:
        start, size = self.placement.offsets[buffer], self.program.buffers[buffer].bytes
        assert start % ALIGNMENT == 0
        assert start + size <= self.placement.bytes
        return slice(start // ALIGNMENT, -(-(start + size) // ALIGNMENT))

    def zones(self, buffer: int) -> list[slice]:
        span = self.span(buffer)
        assert span.start >= self.guard
        assert span.stop + self.guard <= len(self.arena)
        return [slice(span.start - self.guard, span.start), slice(span.stop, span.stop + self.guard)]

    def paint(self, buffer: int) -> None:
        """What a debug build does before the call that brings a slot to life."""
        for zone in self.zones(buffer):
            self.arena[zone] = GUARD

    def is_guarded(self, buffer: int) -> bool:
        return all((self.arena[zone] == GUARD).all() for zone in self.zones(buffer))


def play(program: Program, placement: Placement, guard: int = 0) -> None:
    """Run the calls over tags: every input must be there before and after its call, but for what the call replaces.

    An input that the kernel may overwrite is replaced only if nobody reads it later: whoever does finds it gone.
    """
    memory, last = Memory(program, placement, guard), program.last_reads()
    alive: list[int] = []
    for index, call in enumerate(program.calls):
        fresh = [buffer for buffer in call.born if buffer in placement.offsets and buffer not in placement.shared]
        replaced = {placement.shared.get(b, placement.overwrites.get(b)) for b in call.outputs}
        for buffer in fresh:
            memory.paint(buffer)
        assert all(memory.holds(buffer) for buffer in call.inputs), f"{call.kernel} finds an input overwritten"
        for buffer in call.born:
            memory.write(buffer)
        stays = (set(call.inputs) - replaced) | set(call.born)
        assert all(memory.holds(buffer) for buffer in stays), f"{call.kernel} overwrites its own operands"
        alive = [buffer for buffer in (*alive, *call.born) if buffer in placement.offsets and last[buffer] >= index]
        assert all(memory.is_guarded(buffer) for buffer in alive), f"{call.kernel} writes into a guard"
    assert all(memory.holds(buffer) for buffer in program.results), "a result is gone at the end"


def assert_shares_are_legal(program: Program, placement: Placement) -> None:
    """Each taken slot belongs to an input of the very call, of equal size, at positions its kernel allows; once."""
    assert len(set(placement.shared.values())) == len(placement.shared)
    for call in program.calls:
        for at, output in enumerate(call.outputs):
            if output in placement.shared:
                source = placement.shared[output]
                positions = {position for position, buffer in enumerate(call.inputs) if buffer == source}
                assert positions
                assert {(at, position) for position in positions} <= program.takeovers[call.kernel]
                assert placement.offsets[output] == placement.offsets[source]
                assert program.buffers[output].bytes == program.buffers[source].bytes


def assert_placement(program: Program, guard: int = 0) -> Placement:
    placement = plan_arena(program, guard)
    play(program, placement, guard)
    assert_shares_are_legal(program, placement)
    assert peak_bytes(program) <= placement.bytes
    assert placement.offsets.keys() == program.temporaries()
    assert placement.overwrites == program.overwrites()
    assert placement.delivered == program.delivered()
    return placement


@pytest.mark.slow
@pytest.mark.parametrize("guard", [0, 128])
@pytest.mark.parametrize(("model", "name"), PROGRAMS)
def test_real_programs(model, name, guard):
    assert_placement(real_program(model, name), guard)


@pytest.mark.parametrize(("model", "name"), PROGRAMS)
def test_real_programs_take_hardly_more_than_is_alive(model, name):
    program = real_program(model, name)
    assert plan_arena(program).bytes <= 1.1 * peak_bytes(program)


@pytest.mark.parametrize(("model", "name"), PROGRAMS)
def test_no_two_live_buffers_of_a_real_program_overlap(model, name):
    """The same by definition: lives that meet have places that do not, unless one takes over from the other."""
    program, placement = real_program(model, name), analysed(model).programs[name].placement
    last = program.last_reads()
    born = {buffer: index for index, call in enumerate(program.calls) for buffer in call.born}
    placed = sorted(placement.offsets)
    for one in placed:
        for other in placed:
            if one < other and born[one] <= last[other] and born[other] <= last[one]:
                low, high = sorted((one, other), key=placement.offsets.__getitem__)
                if one not in (placement.shared.get(other), other) and other != placement.shared.get(one):
                    assert placement.offsets[low] + program.buffers[low].bytes <= placement.offsets[high]


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(programs(), st.sampled_from([0, 64, 192]))
def test_made_up_programs(program, guard):
    program.calls = order_calls(program)
    assert_placement(program, guard)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(programs())
def test_sharing_only_makes_it_smaller(program):
    program.calls = order_calls(program)
    shared, apart = plan_arena(program), plan_arena(replace(program, takeovers={}))
    assert shared.bytes < apart.bytes if shared.shared else shared.bytes == apart.bytes


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(programs())
def test_updates_happen_in_place_and_nowhere_else(program):
    program.calls = order_calls(program)
    overwrites = plan_arena(program).overwrites
    updated = {b for b, v in zip(program.results, program.outputs, strict=True) if v.role is Role.PARAMETER}
    assert set(overwrites) == updated
    assert all(program.buffers[root].value.role is Role.PARAMETER for root in overwrites.values())


def chain(*sizes: int) -> Program:
    """Each call reads the one before: at most two buffers live at once."""
    buffers = [Buffer("x", (16,), "float32", Value(Role.INPUT, "x"))]
    buffers += [Buffer(f"t{i}", (size,), "uint8") for i, size in enumerate(sizes)]
    calls = [Call(f"work{i}", (i,), (i + 1,)) for i in range(len(sizes))]
    return Program("predict", buffers, calls, [len(sizes)], [Value(Role.LOSS, "loss")], {})


def test_a_chain_needs_its_largest_neighbours():
    assert plan_arena(chain(640, 640, 640, 640)).bytes == 2 * 640
    assert plan_arena(chain(64, 640, 64, 640, 64)).bytes == 640 + 64


def test_places_are_aligned():
    placement = plan_arena(chain(1, 65, 3))
    assert all(offset % ALIGNMENT == 0 for offset in placement.offsets.values())
    assert placement.bytes == 64 + 128


def test_a_result_that_nobody_reads_lives_to_the_end():
    program = chain(640, 640, 640)
    program.results, program.outputs = [1, 3], [Value(Role.BUFFER, "first"), Value(Role.BUFFER, "last")]
    assert plan_arena(program).bytes == 3 * 640
    play(program, plan_arena(program))


def test_what_the_caller_wants_takes_nothing():
    program = chain(640, 64, 640)
    program.outputs = [Value(Role.OUTPUT, "output")]
    placement = plan_arena(program)
    assert (placement.bytes, placement.delivered) == (640 + 64, {3: 0})
    play(program, placement)


def test_a_chain_in_place_needs_one_slot():
    program = replace(chain(640, 640, 640), takeovers={"work1": frozenset({(0, 0)}), "work2": frozenset({(0, 0)})})
    placement = plan_arena(program)
    assert (placement.bytes, placement.shared) == (640, {2: 1, 3: 2})
    play(program, placement)


def test_a_slot_still_read_is_not_taken_over():
    program = replace(chain(640, 640, 640), takeovers={"work1": frozenset({(0, 0)})})
    program.calls.append(Call("late", (1, 3), (4,)))
    program.buffers.append(Buffer("t3", (64,), "uint8"))
    placement = plan_arena(program)
    assert placement.shared == {}
    play(program, placement)


def test_guards_lie_between_slots_and_at_both_ends():
    placement = plan_arena(chain(64, 64), guard=128)
    assert placement.bytes == 128 + 64 + 128 + 64 + 128
    assert sorted(placement.offsets.values()) == [128, 320]


def test_where_every_order_of_choice_leaves_a_hole_it_is_repaired(monkeypatch):
    program = lives({"a": (3, 6, 1), "b": (0, 3, 2), "c": (1, 5, 1), "d": (1, 2, 5), "e": (4, 5, 5), "f": (2, 6, 1)})
    repaired = plan_arena(program)
    assert repaired.bytes == peak_bytes(program)
    play(program, repaired)
    monkeypatch.setattr("gfcompile.codegen.arena.ROUNDS", 0)
    assert plan_arena(program).bytes > repaired.bytes


def lives(wanted: dict[str, tuple[int, int, int]]) -> Program:
    """A program whose buffers live from call to call as wanted, sizes in slots."""
    buffers = [Buffer("x", (16,), "float32", Value(Role.INPUT, "x"))]
    buffers += [Buffer(name, (64 * size,), "uint8") for name, (_, _, size) in wanted.items()]
    calls = []
    for index in range(max(stop for _, stop, _ in wanted.values()) + 1):
        born = [at for at, (start, _, _) in enumerate(wanted.values(), 1) if start == index]
        read = [at for at, (start, stop, _) in enumerate(wanted.values(), 1) if start < index == stop]
        calls.append(Call(f"call{index}_", (0, *read), tuple(born)))
    return Program("train", buffers, calls, [], [], {})


def test_the_player_notices_a_guard_too_narrow():
    with pytest.raises(AssertionError, match="writes into a guard"):
        play(lives({"a": (0, 2, 1), "b": (1, 2, 1)}), Placement({1: 64, 2: 128}, {}, 256), guard=64)


def test_the_player_notices_a_slot_taken_too_early():
    program = replace(chain(64, 64), takeovers={"work1": frozenset({(0, 0)})})
    program.calls.append(Call("late", (1, 2), ()))
    with pytest.raises(AssertionError, match="finds an input overwritten"):
        play(program, Placement({1: 0, 2: 0}, {}, 64, shared={2: 1}))


def test_the_player_notices_an_overlap():
    """A test of the test: two live buffers at one place, and an update before its last reader."""
    with pytest.raises(AssertionError, match="overwrites its own operands"):
        play(chain(64, 64), Placement({1: 0, 2: 0}, {}, 64))
    buffers = [state_buffer("w", 4), *(Buffer(f"t{i}", (4,), "float32") for i in (1, 2))]
    calls = [Call("sgd_update_plain", (0, 0), (1,)), Call("work", (0,), (2,))]
    early = Program("train", buffers, calls, [1], [Value(Role.PARAMETER, "w")], {})
    with pytest.raises(AssertionError, match="finds an input overwritten"):
        play(early, Placement({2: 0}, {1: 0}, 64))
