"""Kernels of drawn channels against their operators, and these against loops over the formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tvm

from gfcompile.codegen import kernels
from gfcompile.codegen.schedules import schedule
from gfcompile.geometry.channel_draws import Draw
from gfcompile.geometry.layouts import WeightLayout
from gfcompile.ops import gf
from tests.codegen.test_kernels import NATIVE, normal, run

CASES = {  # weight, groups, drawn input channels
    "dense": ([32, 12, 3, 3], 1, [0, 5, 11]),
    "odd": ([7, 5, 3, 2], 1, [4]),
    "pointwise": ([24, 20, 1, 1], 1, [1, 2, 19]),
    "grouped": ([16, 6, 3, 3], 4, [1, 5, 6, 8, 15, 17, 18, 22]),
    "one of each group": ([4, 3, 3, 3], 4, [0, 4, 8, 11]),  # what is left is a depthwise kernel
    "depthwise": ([24, 1, 3, 3], 24, [0, 7, 8, 23]),
    "one depthwise channel": ([24, 1, 3, 3], 24, [9]),
    "depthwise with a multiplier": ([24, 1, 3, 3], 12, [3, 4, 11]),
    "whole groups": ([32, 2, 3, 3], 16, [4, 5, 30, 31]),
}
each_case = pytest.mark.parametrize("case", CASES)


def parts(case: str) -> tuple[list[int], int, np.ndarray, Draw]:
    shape, groups, channels = CASES[case]
    return shape, groups, np.array(channels, np.int32), Draw.of(shape, groups, len(channels))


def pack(w: np.ndarray, groups: int) -> np.ndarray:
    return WeightLayout.for_conv(list(w.shape), groups).pack(torch.from_numpy(w)).numpy()


def touched(shape: list[int], groups: int, channels: np.ndarray) -> np.ndarray:
    """Weight (co, ci, u, v) reads input channel co // (Co/groups) * Ci/groups + ci."""
    found = np.zeros(shape, bool)
    for co in range(shape[0]):
        for ci in range(shape[1]):
            found[co, ci] = co // (shape[0] // groups) * shape[1] + ci in channels
    return found


@each_case
def test_operators(case: str) -> None:
    """What is taken is what the drawn channels touch, in order; the rest stays, or is zero."""
    shape, groups, channels, draw = parts(case)
    w, drawn = torch.from_numpy(normal(*shape)), torch.from_numpy(channels)
    mask = touched(shape, groups, channels)
    taken = gf.take_weights(w, drawn, shape, groups)
    assert list(taken.shape) == draw.drawn_shape(shape)
    np.testing.assert_array_equal(taken.flatten().numpy(), w.numpy()[mask])
    put = gf.put_weights(w, -taken, drawn, shape, groups).numpy()
    np.testing.assert_array_equal(put, np.where(mask, -w.numpy(), w.numpy()))
    np.testing.assert_array_equal(gf.spread_weights(taken, drawn, shape, groups).numpy(), np.where(mask, w.numpy(), 0))


@pytest.mark.slow
@each_case
def test_take_channels(case: str) -> None:
    shape, _, channels, draw = parts(case)
    x, gy = normal(2, 4, 3, draw.in_channels), normal(2, 4, 3, shape[0], seed=1)
    (found,) = run(kernels.take_channels, x, channels, inputs=1, outputs=1)
    np.testing.assert_array_equal(found, x[..., channels])
    if draw.takes_groups:
        sizes = (draw.group_inputs, draw.group_outputs)
        (found,) = run(kernels.take_channels, gy, channels, inputs=sizes[0], outputs=sizes[1])
        outputs = [co for co in range(shape[0]) if co // draw.group_outputs * draw.group_inputs in channels]
        np.testing.assert_array_equal(found, gy[..., outputs])


@pytest.mark.slow
@each_case
def test_take_and_spread_weights(case: str) -> None:
    shape, groups, channels, draw = parts(case)
    w, values = normal(*shape), normal(*draw.drawn_shape(shape), seed=1)
    drawn = torch.from_numpy(channels)
    options: dict[str, Any] = {"shape": tuple(shape), "groups": groups}
    (found,) = run(kernels.take_weights, pack(w, groups), channels, **options)
    wanted = gf.take_weights(torch.from_numpy(w), drawn, shape, groups).numpy()
    np.testing.assert_array_equal(found, pack(wanted, draw.drawn_groups))
    (found,) = run(kernels.spread_weights, pack(values, draw.drawn_groups), channels, **options)
    wanted = gf.spread_weights(torch.from_numpy(values), drawn, shape, groups).numpy()
    np.testing.assert_array_equal(found, pack(wanted, groups))


@pytest.mark.slow
@each_case
def test_put_weights_in_place(case: str) -> None:
    """The result lies where the weights do, and only what is drawn is written."""
    shape, groups, channels, draw = parts(case)
    w, values = normal(*shape), normal(*draw.drawn_shape(shape), seed=1)
    function = schedule(kernels.put_weights(tuple(shape), groups, len(channels)), NATIVE)
    library = tvm.compile(
        tvm.IRModule({"main": function.with_attr("global_symbol", "main")}), tvm.target.Target(NATIVE.tvm)
    )
    state = tvm.runtime.tensor(pack(w, groups).reshape(-1))
    new = pack(values, draw.drawn_groups)
    library["main"](state, tvm.runtime.tensor(new.reshape(-1, new.shape[-1])), tvm.runtime.tensor(channels), state)
    wanted = gf.put_weights(*map(torch.from_numpy, (w, values, channels)), shape, groups).numpy()
    np.testing.assert_array_equal(state.numpy(), pack(wanted, groups).reshape(-1))
