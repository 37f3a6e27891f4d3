"""Programs: calls over buffers, who produces, who reads, who overwrites, and where each buffer has to lie."""

from functools import cache

import pytest
import torch
from hypothesis import strategies as st

from gfcompile.codegen.program import Buffer, Call, Program, in_place_inputs
from gfcompile.frontend.losses import resolve_loss
from gfcompile.job import Analysis, Job
from gfcompile.optimizers import SGD
from gfcompile.settings.schema import Request
from gfcompile.step import STATE, Role, Value
from tests.lean import analyse_lean
from tests.models.zoo import INPUTS, ZOO

MODELS = {"plain": SGD(0.9, 1e-4), "separable": SGD(0.9), "squeeze_excite": SGD()}
PROGRAMS = [(model, name) for model in MODELS for name in ("train", "gradients", "predict")]


@cache
def analysed(model: str) -> Analysis:
    request = Request(train=("*",), batchnorm="train" if model == "separable" else "eval")
    loss = resolve_loss("cross_entropy")
    return analyse_lean(Job(ZOO[model](), (torch.zeros(INPUTS[model]),), loss, request, MODELS[model]))


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


@pytest.mark.slow
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
    assert {value.parameter for value in updated if value.role is Role.OPTIMIZER} == with_momentum


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
    """Random calls over an input, state and temporaries; updates of some of the state wherever the draw puts them.

    Some kernels may write over an input of their own size, some results go to the caller, one may be the loss.
    """
    count = draw(st.integers(1, 4))
    buffers = [state_buffer(f"w{i}", 16 * draw(st.integers(1, 9))) for i in range(count)]
    buffers.append(Buffer("x", (40,), "float32", Value(Role.INPUT, "x")))
    updates = {draw(st.integers(1, 10)): state for state in range(count)}
    calls, temporaries, results, values, takeovers = [], [], [], [], {}
    for position in range(14):
        state, new = updates.get(position), len(buffers)
        if state is None:
            readable = [*range(count + 1), *temporaries]
            inputs = draw(st.lists(st.sampled_from(readable), min_size=1, max_size=3))
            sizes = draw(st.lists(st.integers(1, 90), min_size=1, max_size=2))
            kernel = f"work_of_{position}_"
            if draw(st.booleans()):
                sizes[0] = buffers[inputs[0]].shape[0]
                takeovers[kernel] = frozenset(
                    (at, source)
                    for at, size in enumerate(sizes)
                    for source, buffer in enumerate(inputs)
                    if buffers[buffer].shape == (size,)
                )
            outputs = range(new, new + len(sizes))
            calls.append(Call(kernel, tuple(inputs), tuple(outputs)))
            buffers += [Buffer(f"t{index}", (size,), "float32") for index, size in zip(outputs, sizes, strict=True)]
            temporaries += outputs
        else:
            calls.append(Call("sgd_update_plain3", (state, draw(st.sampled_from(temporaries))), (new,)))
            buffers.append(Buffer(f"new{state}", buffers[state].shape, "float32"))
            results.append(new)
            values.append(Value(Role.PARAMETER, f"w{state}"))
    roles = draw(st.lists(st.sampled_from([Role.BUFFER, Role.GRADIENT, Role.OUTPUT, Role.OUTPUT]), max_size=3))
    roles += [Role.LOSS] * draw(st.booleans())
    for role in roles:
        results.append(draw(st.sampled_from(temporaries)))
        values.append(Value(role, str(role)))
    return Program("train", buffers, calls, results, values, {}, takeovers)


@pytest.mark.parametrize(("model", "name"), PROGRAMS)
def test_every_result_has_one_place(model, name):
    """The caller's gradients and outputs take nothing of the arena, nor do updates; all else does."""
    program = real_program(model, name)
    places = program.overwrites().keys(), program.delivered().keys(), program.temporaries()
    produced = [buffer for call in program.calls for buffer in call.born]
    assert sorted(produced) == sorted(buffer for place in places for buffer in place)
    wanted = [value.role for value in program.outputs if value.role in (Role.GRADIENT, Role.OUTPUT)]
    assert len(program.delivered()) == len(wanted)
    assert bool(wanted) == (name != "train")


def test_a_result_wanted_twice_is_delivered_once_and_an_input_never():
    buffers = [Buffer("x", (4,), "float32", Value(Role.INPUT, "x")), Buffer("y", (4,), "float32")]
    outputs = [Value(Role.OUTPUT, name) for name in "abc"]
    program = Program("predict", buffers, [Call("work", (0,), (1,))], [0, 1, 1], outputs, {})
    assert program.delivered() == {1: 1}
    assert program.temporaries() == set()


def heirs(inputs: tuple[int, ...], outputs: tuple[int, ...], allowed: set[tuple[int, int]], free: set[int]) -> dict:
    call = Call("k", inputs, outputs)
    return Program("train", [], [call], [], [], {}, {"k": frozenset(allowed)}).heirs(call, free)


def test_heirs():
    everything = {1, 2, 3, 4}
    assert heirs((1, 2), (3,), {(0, 0), (0, 1)}, everything) == {3: 1}
    assert heirs((1, 2), (3,), {(0, 1)}, everything) == {3: 2}
    assert heirs((1, 2), (3,), {(0, 0), (0, 1)}, {2, 3}) == {3: 2}, "an input that lives on, or is no temporary"
    assert heirs((1, 2), (3,), {(0, 0)}, {1, 2}) == {}, "an output that lies elsewhere"
    assert heirs((1, 1), (3,), {(0, 0)}, everything) == {}, "passed twice, allowed at one position"
    assert heirs((1, 1), (3,), {(0, 0), (0, 1)}, everything) == {3: 1}
    assert heirs((1,), (3, 4), {(0, 0), (1, 0)}, everything) == {3: 1}, "one slot, one heir"
    assert heirs((1, 2), (3, 4), {(0, 0), (1, 0), (1, 1)}, everything) == {3: 1, 4: 2}


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
