"""The arena: whoever reads a buffer finds what was written there. Checked by playing programs over tagged memory."""

import numpy as np
import pytest
from hypothesis import given, settings

from gfcompile.codegen.arena import ALIGNMENT, Placement, plan_arena
from gfcompile.codegen.program import Buffer, Call, Program, _ordered, in_place_inputs
from gfcompile.step import Role, Value
from tests.codegen.test_program import PROGRAMS, analysed, programs, real_program, state_buffer


class Memory:
    """Which buffer's value each granule of the arena, and each state tensor, holds now."""

    def __init__(self, program: Program, placement: Placement) -> None:
        self.program, self.placement = program, placement
        self.arena = np.full(placement.bytes // ALIGNMENT, -1)
        self.state = {i: i for i, b in enumerate(program.buffers) if b.value or b.literal is not None}

    def holds(self, buffer: int) -> bool:
        root = self.placement.overwrites.get(buffer, buffer)
        if root in self.state:
            return self.state[root] == buffer
        return bool((self.arena[self.span(buffer)] == buffer).all())

    def write(self, buffer: int) -> None:
        if buffer in self.placement.overwrites:
            self.state[self.placement.overwrites[buffer]] = buffer
        else:
            self.arena[self.span(buffer)] = buffer

    def span(self, buffer: int) -> slice:
        start, size = self.placement.offsets[buffer], self.program.buffers[buffer].bytes
        assert start % ALIGNMENT == 0
        assert start + size <= self.placement.bytes
        return slice(start // ALIGNMENT, -(-(start + size) // ALIGNMENT))


def play(program: Program, placement: Placement) -> None:
    """Run the calls over tags: every input must be there before and after its call, but for what the call replaces."""
    memory = Memory(program, placement)
    for call in program.calls:
        replaced = {call.inputs[position] for position in in_place_inputs(call, program.buffers)}
        assert all(memory.holds(buffer) for buffer in call.inputs), f"{call.kernel} finds an input overwritten"
        for buffer in call.outputs:
            memory.write(buffer)
        stays = (set(call.inputs) - replaced) | set(call.outputs)
        assert all(memory.holds(buffer) for buffer in stays), f"{call.kernel} overwrites its own operands"
    assert all(memory.holds(buffer) for buffer in program.results), "a result is gone at the end"


def live_bytes(program: Program, placement: Placement) -> int:
    """The largest sum of temporaries alive at one call: no placement can need less."""
    last = program.last_reads()
    most = 0
    born = {buffer: index for index, call in enumerate(program.calls) for buffer in call.outputs}
    for index in range(len(program.calls)):
        alive = [b for b, birth in born.items() if b in placement.offsets and birth <= index <= last[b]]
        most = max(most, sum(program.buffers[b].bytes for b in alive))
    return most


def assert_placement(program: Program) -> None:
    placement = plan_arena(program)
    play(program, placement)
    assert live_bytes(program, placement) <= placement.bytes
    produced = {buffer for call in program.calls for buffer in call.outputs}
    assert placement.offsets.keys() | placement.overwrites.keys() == produced
    assert not placement.offsets.keys() & placement.overwrites.keys()


@pytest.mark.parametrize(("model", "name"), PROGRAMS)
def test_real_programs(model, name):
    assert_placement(real_program(model, name))


@pytest.mark.parametrize(("model", "name"), PROGRAMS)
def test_no_two_live_buffers_of_a_real_program_overlap(model, name):
    """The same by definition: lives that meet have places that do not."""
    program, placement = real_program(model, name), analysed(model).programs[name].placement
    last = program.last_reads()
    born = {buffer: index for index, call in enumerate(program.calls) for buffer in call.outputs}
    placed = sorted(placement.offsets)
    for one in placed:
        for other in placed:
            if one < other and born[one] <= last[other] and born[other] <= last[one]:
                low, high = sorted((one, other), key=placement.offsets.__getitem__)
                assert placement.offsets[low] + program.buffers[low].bytes <= placement.offsets[high]


@settings(deadline=None, max_examples=60)
@given(programs())
def test_made_up_programs(program):
    program.calls = _ordered(program)
    assert_placement(program)


@settings(deadline=None, max_examples=60)
@given(programs())
def test_updates_happen_in_place_and_nowhere_else(program):
    program.calls = _ordered(program)
    overwrites = plan_arena(program).overwrites
    assert set(overwrites) == set(program.results)
    assert all(program.buffers[root].value.role is Role.PARAMETER for root in overwrites.values())


def chain(*sizes: int) -> Program:
    """Each call reads the one before: at most two buffers live at once."""
    buffers = [Buffer("x", (16,), "float32", Value(Role.INPUT, "x"))]
    buffers += [Buffer(f"t{i}", (size,), "uint8") for i, size in enumerate(sizes)]
    calls = [Call(f"work{i}", (i,), (i + 1,)) for i in range(len(sizes))]
    return Program("predict", buffers, calls, [len(sizes)], [Value(Role.OUTPUT, "output")], {})


def test_a_chain_needs_its_largest_neighbours():
    assert plan_arena(chain(640, 640, 640, 640)).bytes == 2 * 640
    assert plan_arena(chain(64, 640, 64, 640, 64)).bytes == 640 + 64


def test_places_are_aligned():
    placement = plan_arena(chain(1, 65, 3))
    assert all(offset % ALIGNMENT == 0 for offset in placement.offsets.values())
    assert placement.bytes == 64 + 128


def test_a_result_that_nobody_reads_lives_to_the_end():
    program = chain(640, 640, 640)
    program.results, program.outputs = [1, 3], [Value(Role.OUTPUT, "first"), Value(Role.OUTPUT, "last")]
    assert plan_arena(program).bytes == 3 * 640
    play(program, plan_arena(program))


def test_the_player_notices_an_overlap():
    """A test of the test: two live buffers at one place, and an update before its last reader."""
    with pytest.raises(AssertionError, match="overwrites its own operands"):
        play(chain(64, 64), Placement({1: 0, 2: 0}, {}, 64))
    buffers = [state_buffer("w", 4), *(Buffer(f"t{i}", (4,), "float32") for i in (1, 2))]
    calls = [Call("sgd_update_plain", (0, 0), (1,)), Call("work", (0,), (2,))]
    early = Program("train", buffers, calls, [1], [Value(Role.PARAMETER, "w")], {})
    with pytest.raises(AssertionError, match="finds an input overwritten"):
        play(early, Placement({2: 0}, {1: 0}, 64))
