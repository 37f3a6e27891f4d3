"""Orders: legal, every call once, the loss where it was, updates at once, and never a higher peak than the trace's."""

import itertools
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings

from gfcompile.codegen.order import _dependencies, _legal_order, order_calls
from gfcompile.codegen.program import Buffer, Call, Program
from gfcompile.errors import ContractError
from gfcompile.step import Role, Value
from tests.codegen.peaks import peak_bytes
from tests.codegen.test_program import PROGRAMS, assert_order, programs, real_program, state_buffer


def ordered(program: Program) -> Program:
    return replace(program, calls=order_calls(program))


def legal(program: Program) -> Program:
    """In the traced order, where that is legal."""
    return replace(program, calls=_legal_order(program))


def best_peak(program: Program) -> int:
    """By trying every legal order."""
    orders = itertools.permutations(program.calls)
    return min(peak_bytes(replace(program, calls=list(calls))) for calls in orders if is_legal(program, list(calls)))


def is_legal(program: Program, calls: list[Call]) -> bool:
    before = _dependencies(program, calls)
    return all(others < 1 << index for index, others in enumerate(before))


@pytest.mark.slow
@settings(deadline=None, max_examples=80)
@given(programs())
def test_made_up_programs(program):
    new = ordered(program)
    assert_order(new)
    assert sorted(map(repr, new.calls)) == sorted(map(repr, program.calls)), "every call, once"
    assert peak_bytes(new) <= peak_bytes(legal(program))
    assert order_calls(program) == new.calls, "the same every time"


@pytest.mark.slow
@settings(deadline=None, max_examples=80)
@given(programs())
def test_the_halves_stay_apart(program):
    """What stands before the loss in the legal trace stands before it in the order, and nothing else does."""
    if Role.LOSS not in [value.role for value in program.outputs]:
        return
    trace, new = legal(program), ordered(program)
    boundary = trace.loss_call()
    assert new.loss_call() == boundary
    assert set(new.calls[: boundary + 1]) == set(trace.calls[: boundary + 1])
    assert new.saved() == trace.saved()


@pytest.mark.slow
@settings(deadline=None, max_examples=80)
@given(programs())
def test_updates_come_as_soon_as_they_can(program):
    """Between an update and the last call that it waits for stand only calls that take nothing, as updates do."""
    new = ordered(program)
    before, overwrites = _dependencies(new, new.calls), new.overwrites()
    halves = [new.loss_call() + 1] if Role.LOSS in [value.role for value in new.outputs] else []
    for index, call in enumerate(new.calls):
        if call.outputs[0] in overwrites:
            waited = max([before[index].bit_length(), *(start for start in halves if start <= index)])
            between = new.calls[waited:index]
            grown = [c for c in between if new.temporaries() & set(c.outputs) and not takes_nothing(new, c)]
            assert not grown, f"{call.kernel} could run before {grown}"


def takes_nothing(program: Program, call: Call) -> bool:
    index, last = program.calls.index(call), program.last_reads()
    dying = {buffer for buffer in call.inputs if last[buffer] == index}
    placed = program.temporaries()
    return program.heirs(call, placed & (dying | set(call.outputs))).keys() >= placed & set(call.outputs)


@pytest.mark.parametrize(("model", "name"), PROGRAMS)
def test_real_programs(model, name):
    """They come in their order already; put in the order of another run, they stay."""
    program = real_program(model, name)
    assert_order(program)
    start = time.perf_counter()
    again = ordered(program)
    assert time.perf_counter() - start < 2, "a second, and another for a busy machine"
    assert peak_bytes(again) <= peak_bytes(program)


def small_program(sizes: list[int], calls: list[Call], results: tuple[int, ...] = ()) -> Program:
    """Buffer 0 is the input, buffer 1 a parameter; sizes are those of the buffers from 2 on, in slots."""
    buffers = [Buffer("x", (16,), "float32", Value(Role.INPUT, "x")), state_buffer("w", 16)]
    buffers += [Buffer(f"t{index}", (64 * size,), "uint8") for index, size in enumerate(sizes, 2)]
    outputs = [Value(Role.BUFFER, f"t{index}") for index in results]
    return Program("train", buffers, calls, list(results), outputs, {})


def test_small_branches_first():
    """Two big temporaries, each reduced at once, beat both alive: the trace makes the big ones first."""
    big_a, big_b = Call("a", (0,), (2,)), Call("b", (0,), (3,))
    small_a, small_b = Call("c", (2,), (4,)), Call("d", (3,), (5,))
    join = Call("e", (4, 5), (6,))
    program = small_program([100, 100, 1, 1, 1], [big_a, big_b, small_a, small_b, join], results=(6,))
    assert peak_bytes(program) == 201 * 64
    new = ordered(program)
    assert peak_bytes(new) == 102 * 64 == best_peak(program)
    assert new.calls == [big_a, small_a, big_b, small_b, join]


def test_not_short_sighted():
    """The cheapest next call (1 slot) leads to the dear branch early; the dearer next call (5) frees what it took."""
    calls = [
        Call("cheap", (0,), (2,)),
        Call("dear", (2,), (3,)),
        Call("five", (0,), (4,)),
        Call("one", (4,), (5,)),
        Call("join", (3, 5), (6,)),
    ]
    program = small_program([1, 50, 60, 1, 1], calls, results=(6,))
    assert peak_bytes(program) == 111 * 64
    assert peak_bytes(ordered(program)) == best_peak(program) == 61 * 64


def test_what_depends_on_no_data_waits_until_it_is_needed():
    """A transposed weight is cheap to make first, and would then lie there while the big ones pass."""
    transposed, big = Call("transpose", (1,), (2,)), Call("big", (0,), (3,))
    small, use = Call("small", (3,), (4,)), Call("use", (2, 4), (5,))
    program = small_program([10, 100, 1, 1], [transposed, big, small, use], results=(5,))
    assert ordered(program).calls == [big, small, transposed, use]


def test_in_place_counts():
    """Where the output may lie on its input, the branch is as cheap as that."""
    calls = [Call("make", (0,), (2,)), Call("map", (2,), (3,))]
    program = small_program([10, 10], calls, results=(3,))
    assert peak_bytes(program) == 20 * 64
    assert peak_bytes(replace(program, takeovers={"map": frozenset({(0, 0)})})) == 10 * 64


def test_the_best_is_found_on_small_programs():
    """Every program of two branches of two calls and a join, sizes 1, 2 or 4: as good as the best of all orders."""
    calls = [Call("a", (0,), (2,)), Call("b", (0,), (3,)), Call("c", (2,), (4,)), Call("d", (3,), (5,))]
    calls.append(Call("e", (4, 5), (6,)))
    for sizes in itertools.product((1, 2, 4), repeat=4):
        program = small_program([*sizes, 1], calls, results=(6,))
        assert peak_bytes(ordered(program)) == best_peak(program), sizes


def state_program(calls: list[Call]) -> Program:
    buffers = [state_buffer("w", 4), *(Buffer(f"t{i}", (4,), "float32") for i in range(4))]
    return Program("train", buffers, calls, [], [], {})


def test_an_update_waits_for_a_late_reader():
    early, update, late = Call("work", (0,), (1,)), Call("sgd_update_plain", (0, 1), (2,)), Call("work1", (0,), (3,))
    assert_order(ordered(state_program([early, update, late])))
    assert _legal_order(state_program([early, update, late])) == [early, late, update]


def test_an_update_comes_before_the_next_gradient():
    """Two gradients, then two updates: one gradient is alive at a time."""
    buffers = [state_buffer("w0", 16), state_buffer("w1", 16), *(Buffer(f"g{i}", (64,), "uint8") for i in range(2))]
    buffers += [Buffer(f"new{i}", (16,), "float32") for i in range(2)]
    grads = [Call("grad", (0,), (2,)), Call("grad", (1,), (3,))]
    updates = [Call("sgd_update_plain", (0, 2), (4,)), Call("sgd_update_plain", (1, 3), (5,))]
    program = Program("train", buffers, [*grads, *updates], [], [], {})
    assert order_calls(program) == [grads[0], updates[0], grads[1], updates[1]]
    assert peak_bytes(ordered(program)) == 64


def test_an_update_whose_result_is_needed_by_a_reader_of_the_old_value_is_our_bug():
    update, circular = Call("sgd_update_plain", (0, 1), (2,)), Call("work", (0, 2), (3,))
    with pytest.raises(ContractError) as caught:
        order_calls(state_program([Call("work1", (0,), (1,)), update, circular]))
    assert str(caught.value) == "program 'train': an update overwrites a value that its own gradient needs"
