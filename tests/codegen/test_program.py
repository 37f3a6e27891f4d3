"""Programs: calls in an order that respects who produces, who reads, and who overwrites."""

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gfcompile.codegen.program import Buffer, Call, Program, _ordered, in_place_inputs
from gfcompile.compiler import Analysis, Job, analyse
from gfcompile.errors import ContractError
from gfcompile.frontend.losses import resolve_loss
from gfcompile.optimizers import SGD
from gfcompile.plan import Request
from gfcompile.step import STATE, Role, Value
from tests.models.zoo import INPUTS, ZOO

MODELS = {"plain": SGD(0.9, 1e-4), "separable": SGD(0.9), "squeeze_excite": SGD()}
PROGRAMS = [(model, name) for model in MODELS for name in ("train", "gradients", "predict")]


@cache
def analysed(model: str) -> Analysis:
    request = Request(train=("*",), batchnorm="train" if model == "separable" else "eval")
    loss = resolve_loss("cross_entropy")
    return analyse(Job(ZOO[model](), torch.zeros(INPUTS[model]), loss, request, MODELS[model]))


def real_program(model: str, name: str) -> Program:
    return analysed(model).programs[name].program


def assert_order(program: Program) -> None:
    """Inputs are produced before they are read, each once; state is read before it is overwritten."""
    produced = {index for index, buffer in enumerate(program.buffers) if buffer.value or buffer.literal is not None}
    overwritten: set[int] = set()
    for call in program.calls:
        assert set(call.inputs) <= produced, f"{call.kernel} reads what does not exist yet"
        assert not set(call.inputs) & overwritten, f"{call.kernel} reads a value that an update has replaced"
        assert not set(call.outputs) & produced, f"{call.kernel} produces a buffer again"
        produced |= set(call.outputs)
        overwritten |= {call.inputs[position] for position in in_place_inputs(call, program.buffers)}
    assert set(program.results) <= produced
    assert not set(program.results) & overwritten


@pytest.mark.parametrize(("model", "name"), PROGRAMS)
def test_order_of_real_programs(model, name):
    assert_order(real_program(model, name))


@pytest.mark.parametrize("model", MODELS)
def test_every_parameter_of_a_training_program_is_updated_in_place(model):
    program = real_program(model, "train")
    updated = {
        program.buffers[call.inputs[position]].value
        for call in program.calls
        for position in in_place_inputs(call, program.buffers)
    }
    trained = analysed(model).plan.trained_parameters
    assert {value.name for value in updated if value.role is Role.PARAMETER} == trained
    with_momentum = trained if MODELS[model].momentum else set()
    assert {value.name for value in updated if value.role is Role.MOMENTUM} == with_momentum


@pytest.mark.parametrize("model", MODELS)
def test_other_programs_change_nothing(model):
    for name in ("gradients", "predict"):
        program = real_program(model, name)
        assert not any(in_place_inputs(call, program.buffers) for call in program.calls)


@pytest.mark.parametrize("model", MODELS)
def test_saved_buffers_cross_the_loss(model):
    program = real_program(model, "train")
    boundary = program.loss_call()
    before = {buffer for call in program.calls[: boundary + 1] for buffer in call.outputs}
    after = {buffer for call in program.calls[boundary + 1 :] for buffer in call.inputs}
    assert set(program.saved()) == (before & after) - set(program.results)
    assert program.saved()


def state_buffer(name: str, size: int) -> Buffer:
    return Buffer(name, (size,), "float32", Value(Role.PARAMETER, name))


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Random calls over state and temporaries; updates of some of the state wherever the draw puts them."""
    count = draw(st.integers(1, 4))
    buffers = [state_buffer(f"w{i}", 16 * draw(st.integers(1, 9))) for i in range(count)]
    updates = {draw(st.integers(1, 10)): state for state in range(count)}
    calls, temporaries, results, values = [], [], [], []
    for position in range(11):
        state, new = updates.get(position), len(buffers)
        if state is None:
            readable = [*range(count), *temporaries]
            inputs = draw(st.lists(st.sampled_from(readable), min_size=1, max_size=3))
            sizes = draw(st.lists(st.integers(1, 90), min_size=1, max_size=2))
            outputs = range(new, new + len(sizes))
            calls.append(Call("work", tuple(inputs), tuple(outputs)))
            buffers += [Buffer(f"t{index}", (size,), "float32") for index, size in zip(outputs, sizes, strict=True)]
            temporaries += outputs
        else:
            calls.append(Call("sgd_update_plain3", (state, draw(st.sampled_from(temporaries))), (new,)))
            buffers.append(Buffer(f"new{state}", buffers[state].shape, "float32"))
            results.append(new)
            values.append(Value(Role.PARAMETER, f"w{state}"))
    return Program("train", buffers, calls, results, values, {})


@settings(deadline=None, max_examples=60)
@given(programs())
def test_order_of_made_up_programs(program):
    calls = list(program.calls)
    program.calls = _ordered(program)
    assert_order(program)
    assert sorted(map(repr, program.calls)) == sorted(map(repr, calls)), "every call, once"


@settings(deadline=None, max_examples=60)
@given(programs())
def test_an_order_that_is_right_stays(program):
    program.calls = _ordered(program)
    assert _ordered(program) == program.calls


def state_program(calls: list[Call]) -> Program:
    buffers = [state_buffer("w", 4), *(Buffer(f"t{i}", (4,), "float32") for i in range(4))]
    return Program("train", buffers, calls, [], [], {})


def test_an_update_waits_for_a_late_reader():
    early, update, late = Call("work", (0,), (1,)), Call("sgd_update_plain", (0, 1), (2,)), Call("work1", (0,), (3,))
    assert _ordered(state_program([early, update, late])) == [early, late, update]


def test_an_update_whose_result_is_needed_by_a_reader_of_the_old_value_is_our_bug():
    update, circular = Call("sgd_update_plain", (0, 1), (2,)), Call("work", (0, 2), (3,))
    with pytest.raises(ContractError) as caught:
        _ordered(state_program([Call("work1", (0,), (1,)), update, circular]))
    assert str(caught.value) == "program 'train': an update overwrites a value that its own gradient needs"


@pytest.mark.parametrize("role", list(Role))
def test_only_state_is_overwritten(role):
    buffers = [Buffer("a", (4,), "float32", Value(role, "a")), *(Buffer(name, (4,), "float32") for name in "go")]
    expected = (0,) if role in STATE else ()
    assert in_place_inputs(Call("sgd_update_plain12", (0, 1), (2,)), buffers) == expected
    assert in_place_inputs(Call("fused_sgd_update_plain", (0, 1), (2,)), buffers) == ()
    assert in_place_inputs(Call("sgd_update_plain", (1, 0), (2,)), buffers) == ()


@pytest.mark.parametrize(("shape", "dtype", "size"), [((2, 3), "float32", 24), ((), "int64", 8), ((5,), "bool", 5)])
def test_bytes_of_a_buffer(shape, dtype, size):
    assert Buffer("b", shape, dtype).bytes == size
