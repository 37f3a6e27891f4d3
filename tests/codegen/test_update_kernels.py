"""Update kernels run in place, as the driver runs them, and give what their operators give."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tvm import te

from gfcompile.codegen.kernels import update
from gfcompile.codegen.schedules import schedule
from gfcompile.ops import gf
from gfcompile.targets import find_target
from tests.selection import often
from tests.tolerances import assert_near

NATIVE = find_target("native")
ROUNDING = 1e-6  # a handful of float32 operations on either side
SGD = {"momentum": 0.9, "weight_decay": 0.1, "lr_factor": 0.5}
# eps large enough to show on which side of a root or a correction it is added
ADAM = {"beta1": 0.9, "beta2": 0.99, "eps": 0.1, "weight_decay": 0.1, "lr_factor": 0.5}
RMSPROP = {"alpha": 0.9, "eps": 0.1, "weight_decay": 0.1, "lr_factor": 0.5}
# kernel, tensors of state, which of them are means of squares, scalars after the gradient, settings
CASES: dict[str, tuple[str, int, tuple[int, ...], tuple[float | None, ...], dict[str, Any]]] = {
    "plain": ("sgd_update_plain", 0, (), (0.5,), {"weight_decay": 0.1, "lr_factor": 0.5}),
    "momentum": ("sgd_update", 1, (), (0.5, None), {**SGD, "nesterov": False}),
    "nesterov": ("sgd_update", 1, (), (0.5, 0.7), {**SGD, "nesterov": True}),
    "adam": ("adam_update", 2, (1,), (0.5, 0.1, 0.01), {**ADAM, "decoupled": False}),
    "adamw": ("adam_update", 2, (1,), (0.5, 0.1, 0.01), {**ADAM, "decoupled": True}),
    "amsgrad": ("adam_update", 3, (1, 2), (0.5, 0.1, 0.01), {**ADAM, "decoupled": False}),
    "rmsprop": ("rmsprop_update", 1, (0,), (0.5,), {**RMSPROP, "momentum": 0.0, "centered": False}),
    "rmsprop_momentum": ("rmsprop_update", 2, (0,), (0.5,), {**RMSPROP, "momentum": 0.9, "centered": False}),
    "rmsprop_centered": ("rmsprop_update", 2, (0,), (0.5,), {**RMSPROP, "momentum": 0.0, "centered": True}),
    "rmsprop_both": ("rmsprop_update", 3, (0,), (0.5,), {**RMSPROP, "momentum": 0.9, "centered": True}),
}
LISTS_STATE = ("adam_update", "rmsprop_update")


EACH, SHARED = (48, 3, 3), (48, 1, 1)  # a value each, one for all taps


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "gradient_shape"),
    often(
        [(name, shape) for name in CASES for shape in (EACH, SHARED)],
        [
            *((name, EACH) for name in CASES),
            *((name, SHARED) for name in ("plain", "nesterov", "adam", "rmsprop_both")),
        ],
    ),
)
def test_in_place(name: str, gradient_shape: tuple[int, ...]) -> None:
    kernel, count, squares, scalars, settings = CASES[name]
    shape = (48, 3, 3)
    random = np.random.default_rng(0)
    w, g = (random.normal(size=size).astype("float32") for size in (shape, gradient_shape))
    state = [random.normal(size=shape).astype("float32") for _ in range(count)]
    for index in squares:
        state[index] = 10 + state[index] ** 2
    numbers = [None if value is None else np.array(value, "float32") for value in scalars]
    expected = _eager(kernel, w, state, g, numbers, settings)
    found = _run_in_place(kernel, w, state, g, numbers, settings)
    assert len(found) == len(expected) == 1 + count
    for index, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert_near(one, other, ROUNDING, f"{name}, result {index}")
        assert not np.array_equal(one, [w, *state][index]), f"result {index} is the old value"


def _arranged(kernel: str, state: list[Any]) -> list[Any]:
    return [state] if kernel in LISTS_STATE else state


def _eager(kernel: str, w: Any, state: Any, g: Any, scalars: Any, settings: dict[str, Any]) -> list[np.ndarray]:
    def wide(value: Any) -> Any:
        return None if value is None else torch.from_numpy(np.asarray(value, np.float64))

    tensors = _arranged(kernel, [wide(each) for each in state])
    results = getattr(gf, kernel)(wide(w), *tensors, wide(g), *map(wide, scalars), **settings)
    return [each.numpy() for each in (results if isinstance(results, list | tuple) else [results])]


def _run_in_place(kernel: str, w: Any, state: Any, g: Any, scalars: Any, settings: dict[str, Any]) -> list[np.ndarray]:
    """Outputs are the inputs' own memory: a stage that came too late would read what another has stored."""
    arrays = [w, *state, g, *(each for each in scalars if each is not None)]
    inputs = [te.placeholder(each.shape, "float32", name=f"in{index}") for index, each in enumerate(arrays)]
    rest = iter(inputs[2 + len(state) :])
    named = [None if each is None else next(rest) for each in scalars]
    tensors = _arranged(kernel, inputs[1 : 1 + len(state)])
    results = getattr(update, kernel)(inputs[0], *tensors, inputs[1 + len(state)], *named, **settings)
    outputs = list(results) if isinstance(results, tuple) else [results]
    main = _compiled([*inputs, *outputs])
    buffers = [tvm.runtime.tensor(each) for each in arrays]
    main(*buffers, *buffers[: len(outputs)])
    return [each.numpy() for each in buffers[: len(outputs)]]


def _compiled(tensors: list[te.Tensor]) -> Any:
    function = schedule(te.create_prim_func(tensors), NATIVE)
    function = function.without_attr("tirx.noalias").with_attr("global_symbol", "main")
    return tvm.compile(tvm.IRModule({"main": function}), tvm.target.Target(NATIVE.tvm))["main"]


@pytest.mark.parametrize("beta", often([0.0, 0.1, 0.5, 0.9, 0.99, 0.999, 0.99999], [0.0, 0.5, 0.999, 0.99999]))
def test_bias_correction_keeps_its_digits(beta: float) -> None:
    """1 - beta^t in float32 would be wrong by 6e-5 for t = 1, beta = 0.999."""
    count = te.placeholder((), "float32", name="count")
    main = _compiled([count, update.bias_correction(count, beta)])
    result = tvm.runtime.tensor(np.zeros((), "float32"))
    for steps in (1, 2, 5, 13, 100, 499, 500, 1000, 10**4, 10**6, 2**24):
        main(tvm.runtime.tensor(np.array(steps, "float32")), result)
        exact = -math.expm1(steps * math.log(beta)) if beta else 1.0
        assert abs(float(result.numpy()) / exact - 1) < 1e-6, steps


def test_the_first_step_is_not_dampened() -> None:
    count = te.placeholder((), "float32", name="count")
    main = _compiled([count, update.sgd_gain(count, 0.3)])
    result = tvm.runtime.tensor(np.zeros((), "float32"))
    for steps, gain in ((1, 1.0), (2, 0.7), (1000, 0.7)):
        main(tvm.runtime.tensor(np.array(steps, "float32")), result)
        assert float(result.numpy()) == np.float32(gain)


@pytest.mark.parametrize("shape", [(3,), (16, 3, 3, 8, 16), (70000,)])
def test_square_sum(shape: tuple[int, ...]) -> None:
    g = te.placeholder(shape, "float32", name="g")
    main = _compiled([g, update.square_sum(g, 9)])
    values = np.random.default_rng(0).normal(size=shape).astype("float32")
    result = tvm.runtime.tensor(np.zeros((), "float32"))
    main(tvm.runtime.tensor(values), result)
    assert_near(result.numpy(), 9 * np.square(values, dtype=np.float64).sum(), ROUNDING, "square sum")


@pytest.mark.parametrize(
    ("sums", "expected"),
    [((9.0, 16.0), 0.5 / (5 + 1e-6)), ((0.01, 0.0), 1.0), ((0.0, 0.0), 1.0), ((math.inf, 1.0), 0.0)],
)
def test_clip_coefficient(sums: tuple[float, float], expected: float) -> None:
    assert _coefficient(sums) == pytest.approx(expected, rel=1e-6)


def test_a_gradient_of_nan_clips_to_nan() -> None:
    assert math.isnan(_coefficient((math.nan, 1.0)))


def _coefficient(sums: tuple[float, float]) -> float:
    inputs = [te.placeholder((), "float32", name=name) for name in "ab"]
    main = _compiled([*inputs, update.clip_coefficient(inputs, 0.5)])
    result = tvm.runtime.tensor(np.zeros((), "float32"))
    main(*(tvm.runtime.tensor(np.array(each, "float32")) for each in sums), result)
    return float(result.numpy())
