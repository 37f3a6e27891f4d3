"""Winograd convolutions against PyTorch in float64: transforms, kernel, epilogues, the bound on error."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
import tvm
from tvm import relax
from tvm.s_tir.stmt import SBlock
from tvm_ffi import structural_walk

from benchmarks.graphs import CompiledGraph
from gfcompile.codegen import kernels
from gfcompile.codegen.schedules import find_workspace, schedule, winograd
from gfcompile.codegen.schedules.winograd import Blocking, Shape, choose_blocking
from gfcompile.codegen.schedules.workspace import COMPACT
from gfcompile.geometry.layouts import WeightLayout
from gfcompile.geometry.winograd import Convolution, choose_edge, transforms
from gfcompile.ops import gf
from gfcompile.targets import find_target
from tests.codegen.test_kernels import normal, run
from tests.codegen.test_schedules import execute, fuse, kernel
from tests.selection import often

op = relax.op
TOLERANCE = {2: 5e-6, 4: 1.5e-5}  # of the largest value; plain convolutions are held to 5e-6
SHAPES = [  # images, inputs, outputs, size, padding
    (2, 64, 64, (56, 56), (1, 1)),
    (2, 32, 48, (14, 14), (1, 1)),  # tiles hang over the edge
    (8, 64, 32, (7, 7), (1, 1)),  # several images a task
    (1, 24, 40, (13, 9), (0, 2)),
    (3, 8, 8, (3, 4), (1, 1)),  # one tile an image
]
BY_EDGE = [(*shape, edge) for shape in SHAPES for edge in (2, 4)]


def weights(outputs: int, inputs: int) -> np.ndarray:
    return normal(outputs, inputs, 3, 3, seed=1) / np.float32(3 * inputs**0.5)


def transformed(w: np.ndarray, edge: int) -> np.ndarray:
    shape = list(w.shape)
    packed = WeightLayout.for_conv(shape, 1).pack(torch.tensor(w).double())
    return gf.winograd_weight(packed, shape, edge).float().numpy()


def exact(x: np.ndarray, w: np.ndarray, padding: tuple[int, int]) -> np.ndarray:
    image = torch.tensor(x).double().permute(0, 3, 1, 2)
    return torch.conv2d(image, torch.tensor(w).double(), padding=padding).permute(0, 2, 3, 1).numpy()


def check(got: np.ndarray, want: np.ndarray, edge: int) -> None:
    assert got.shape == want.shape
    assert np.abs(got - want).max() <= TOLERANCE[edge] * max(1.0, np.abs(want).max())


@pytest.mark.parametrize("edge", [2, 4])
def test_transforms_are_exactly_a_convolution(edge: int) -> None:
    tables, rng = transforms(edge), np.random.default_rng(0)
    x, w = rng.standard_normal((tables.span, tables.span)), rng.standard_normal((3, 3))
    middle = (tables.weights @ w @ tables.weights.T) * (tables.inputs @ x @ tables.inputs.T)
    want = [[(x[i : i + 3, j : j + 3] * w).sum() for j in range(edge)] for i in range(edge)]
    assert np.allclose(tables.outputs @ middle @ tables.outputs.T, want, rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("images", "inputs", "outputs", "size", "padding", "edge"),
    often(BY_EDGE, [*((*shape, 4) for shape in SHAPES), (*SHAPES[1], 2), (*SHAPES[3], 2)]),
)
def test_kernel(images: int, inputs: int, outputs: int, size: tuple[int, int], padding: tuple[int, int], edge: int):
    x, w = normal(images, *size, inputs), weights(outputs, inputs)
    (got,) = run(kernels.winograd_conv2d, x, transformed(w, edge), padding=padding, edge=edge)
    check(got, exact(x, w, padding), edge)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("images", "inputs", "outputs", "size", "padding", "edge"),
    often(BY_EDGE, [(*SHAPES[0], 4), (*SHAPES[2], 4), (*SHAPES[3], 2)]),
)
def test_kernel_that_transforms_the_weights_itself(images, inputs, outputs, size, padding, edge):
    x, w = normal(images, *size, inputs), weights(outputs, inputs)
    packed = WeightLayout.for_conv(list(w.shape), 1).pack(torch.tensor(w)).numpy()
    (got,) = run(kernels.winograd_conv2d, x, packed, padding=padding, edge=edge)
    check(got, exact(x, w, padding), edge)


@pytest.mark.slow
@pytest.mark.parametrize("size", [8, 7])
def test_epilogue_is_part_of_the_kernel(size: int) -> None:
    """Bias, residual and ReLU at the tile, also where tiles hang over the edge: no map is written in between."""

    def body(builder, x, u, bias, skip):
        y = builder.emit_te(lambda x, u: kernels.winograd_conv2d(x, u, (1, 1), 4), x, u, primfunc_name_hint="winograd")
        return builder.emit(op.nn.relu(builder.emit(op.add(builder.emit(op.add(y, bias)), skip))))

    x, w, bias = normal(2, size, size, 32), weights(64, 32), normal(64, seed=2)
    skip = normal(2, size, size, 64, seed=3)
    arrays = [x, transformed(w, 4), bias, skip]
    (func,) = fuse(body, [a.shape for a in arrays], ["float32"] * 4)
    rule, got = execute(func, arrays)
    assert rule == "winograd"
    check(got, np.maximum(exact(x, w, (1, 1)) + bias + skip, 0), 4)


@pytest.mark.slow
def test_two_readers_of_the_result() -> None:
    """What is not one element-wise block after the convolution is scheduled for itself."""

    def body(builder, x, u):
        y = builder.emit_te(lambda x, u: kernels.winograd_conv2d(x, u, (1, 1), 4), x, u, primfunc_name_hint="winograd")
        return builder.emit(op.multiply(builder.emit(op.exp(y)), builder.emit(op.nn.relu(y))))

    x, w = normal(1, 7, 7, 16), weights(16, 16)
    arrays = [x, transformed(w, 4)]
    (func,) = fuse(body, [a.shape for a in arrays], ["float32"] * 2)
    y = exact(x, w, (1, 1))
    rule, got = execute(func, arrays)
    assert rule == "winograd"
    check(got, np.exp(y) * np.maximum(y, 0), 4)


BLOCKINGS = [
    Blocking(1, 1, 1),
    Blocking(1, 3, 2),
    Blocking(2, 3, 1),
    Blocking(4, 3, 1),  # one task: its buffers belong to the whole kernel
    Blocking(4, 3, 4, shared=True),
    Blocking(4, 3, 1, shared=True),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("blocking", "prepared"),
    often(
        [(blocking, prepared) for blocking in BLOCKINGS for prepared in (True, False)],
        [*((blocking, True) for blocking in BLOCKINGS), (BLOCKINGS[1], False), (BLOCKINGS[4], False)],
    ),
    ids=str,
)
def test_every_blocking(blocking: Blocking, prepared: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In a library, whose kernels get just the workspace that was counted for them."""
    monkeypatch.setattr(winograd, "choose_blocking", lambda shape, target: blocking)
    w = weights(64, 16)
    packed = WeightLayout.for_conv(list(w.shape), 1).pack(torch.tensor(w)).numpy()
    operand = transformed(w, 4) if prepared else packed

    def function(x: torch.Tensor, u: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (gf.winograd_conv2d_nhwc(x, u, [1, 1], 4),)

    graph = CompiledGraph(function, [(4, 10, 9, 16), operand.shape], tmp_path)
    graph.inputs[1][:] = operand
    graph.run()
    check(graph.outputs[0], exact(graph.inputs[0], w, (1, 1)), 4)


def test_positions_of_a_tile_lie_on_different_lines() -> None:
    """64 tiles of 256 channels are 64 KiB: as far apart, all positions of a tile would share one line of a cache."""
    shapes = [(4, 16, 16, 256), (36, 16, 256, 16)]
    (func,) = fuse(
        lambda builder, x, u: builder.emit_te(lambda x, u: kernels.winograd_conv2d(x, u, (1, 1), 4), x, u),
        shapes,
        ["float32"] * 2,
    )
    found: list[list[int]] = []

    def look(block: SBlock) -> None:
        found.extend([int(stride) for stride in buffer.strides] for buffer in block.alloc_buffers if buffer.strides)

    compact = COMPACT(tvm.IRModule({"main": schedule(func, find_target("native")).with_attr("global_symbol", "main")}))
    structural_walk(compact["main"].body, [(SBlock, look)])
    assert found, "no buffer has its strides set"
    for strides in found:
        assert strides[1] % 1024 == 16


def test_scratch_is_what_a_block_of_tiles_takes() -> None:
    """Transformed inputs and products of 98 tiles and one padded band: not a padded image, nor a batch of them."""
    func = kernel(lambda x, u: kernels.winograd_conv2d(x, u, (1, 1), 4), (8, 56, 56, 64), (36, 4, 64, 16))
    target = dataclasses.replace(find_target("x86-64-v3"), cores=2, cache=512 * 1024)
    expected = 4 * (36 * 98 * (64 + 32) + 6 * 58 * 64)
    assert expected <= find_workspace(schedule(func, target)).each <= 1.2 * expected


def test_many_weights_and_few_tiles_share_the_inputs() -> None:
    target = find_target("x86-64-v3")
    trained = Shape(8, 2, 2, 512, 512, 6, 8, prepared=False)
    assert choose_blocking(trained, target).shared
    assert not choose_blocking(Shape(8, 14, 14, 64, 64, 6, 8, prepared=True), target).shared


def test_blocking_gives_every_core_work_and_covers_the_grid() -> None:
    target = find_target("x86-64-v3")
    for images, rows, channels in ((8, 14, 64), (1, 14, 64), (8, 2, 512), (1, 2, 512), (1, 1, 8), (32, 200, 64)):
        shape = Shape(images, rows, rows, channels, channels, 6, 8, prepared=True)
        found: Blocking = choose_blocking(shape, target)
        assert images % found.images == 0
        assert rows % found.rows == 0
        tasks = images // found.images * (rows // found.rows) * found.parts
        assert tasks >= min(target.cores, images * rows * channels // 8)


def test_is_chosen_where_it_pays() -> None:
    def chosen(size: tuple[int, int, int], channels: int) -> int | None:
        return choose_edge(Convolution(size, (channels, channels), (1, 1), is_frozen=True))

    assert chosen((8, 56, 56), 64) == 4
    assert chosen((8, 14, 14), 256) == 4
    assert chosen((1, 7, 7), 512) is None  # few tiles: the weights are all the work
    assert chosen((8, 112, 112), 8) is None  # few channels: the transforms are all the work
