"""Products of matrices: transposed operands where they lie, and gradients of weights in slices of rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gfcompile.codegen import kernels
from gfcompile.codegen.schedules.depthwise import most_pixels
from gfcompile.codegen.schedules.outer import list_parts, slice_rows
from gfcompile.codegen.schedules.tile import Tile, accumulators, choose_tile
from gfcompile.targets import Target, find_target
from tests.codegen.test_kernels import check, nchw, normal, pack, run
from tests.codegen.test_schedules import execute, kernel
from tests.selection import often

NATIVE = find_target("native")


TURNS = [(False, False), (False, True), (True, False), (True, True)]
SIZES = [(8, 1000, 512), (5, 7, 3), (64, 96, 300)]


@pytest.mark.parametrize(
    ("m", "n", "k", "a_turned", "b_turned"),
    often(
        [(*sizes, *turns) for sizes in SIZES for turns in TURNS],
        [
            *((*SIZES[0], *turns) for turns in TURNS),
            (*SIZES[1], *TURNS[3]),
            (*SIZES[1], *TURNS[0]),
            (*SIZES[2], *TURNS[1]),
        ],
    ),
)
def test_matmul(m: int, n: int, k: int, a_turned: bool, b_turned: bool) -> None:
    a, b = normal(m, k), normal(k, n, seed=1)
    operands = [np.ascontiguousarray(x.T) if turned else x for x, turned in ((a, a_turned), (b, b_turned))]
    (got,) = run(kernels.matmul, *operands, a_turned=a_turned, b_turned=b_turned)
    check(got, a.astype(np.float64) @ b)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "size", "channels"),
    [
        (32, (9, 11), (32, 48)),  # a slice is an image, and a few of its rows
        (2, (17, 19), (24, 16)),  # rows of prime length
        (300, (1, 1), (16, 16)),  # a slice is many images
        (3, (1, 263), (16, 32)),  # one row longer than a slice, and prime: no slice at all
        (64, (4, 4), (512, 32)),  # the result in several parts
        (8, (4, 4), (512, 64)),  # one slice
        (2, (5, 5), (8, 16)),  # one slice, one task
    ],
    ids=str,
)
def test_weight_gradient_on_the_patch_grid(n: int, size: tuple[int, int], channels: tuple[int, int]) -> None:
    inputs, outputs = channels
    g, x = normal(n, *size, outputs), normal(n, *size, inputs, seed=1)
    (got,) = run(kernels.channel_mix_weight, g, x, groups=1, kernel=(1, 1), kb=16)
    want = np.einsum("npqo,npqc->oc", g.astype(np.float64), x)
    check(got, pack(want[:, :, None, None], 16))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "groups"),
    [
        ((1, 1), (1, 1), (1, 1), 1),
        ((2, 1), (1, 0), (1, 1), 1),
        ((1, 1), (2, 2), (2, 2), 1),
        ((1, 1), (1, 1), (1, 1), 2),
    ],
)
def test_exact_weight_gradient_in_slices(stride, padding, dilation, groups) -> None:
    x = normal(4, 23, 21, 32)
    shape = (32, 32 // groups, 3, 3)
    image = nchw(x)
    weight = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    y = torch.conv2d(image, weight, None, stride, padding, dilation, groups)
    gy = normal(y.shape[0], *y.shape[2:], y.shape[1], seed=1)
    (want,) = torch.autograd.grad(y, weight, nchw(gy))
    options = {"kernel": (3, 3), "stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    (got,) = run(kernels.conv2d_weight_grad, gy, x, **options, kb=16)
    check(got, pack(want.numpy(), 16))


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [4, 16])
def test_slices_for_other_vectors(lanes: int) -> None:
    target = Target("other", "", NATIVE.tvm, lanes, 32, 4, 1 << 18, ["cc"])
    func = kernel(lambda g, x: kernels.channel_mix_weight(g, x, 1, (1, 1), 16), *[(8, 10, 10, 32)] * 2)
    arrays = [normal(8, 10, 10, 32), normal(8, 10, 10, 32, seed=1)]
    rule, got = execute(func, arrays, target)
    assert rule == "outer"
    check(got, execute(func, arrays)[1])


def test_slices_are_whole_axes_and_a_divisor_of_the_next() -> None:
    assert slice_rows([32, 60, 80]) == (1, 1)  # 80 rows
    assert slice_rows([32, 4, 4]) == (0, 16)  # 256
    assert slice_rows([32, 8, 8]) == (0, 1)  # 64
    assert slice_rows([8, 4, 4]) == (0, 8)  # all 128 at once
    assert slice_rows([8, 1, 1]) is None  # too few to be worth packing
    assert slice_rows([1, 1, 263]) is None  # prime
    assert slice_rows([512]) == (0, 256)


def test_parts_keep_every_core_busy_and_the_result_in_cache() -> None:
    target, tile = find_target("x86-64-v3"), Tile((4, 16), 8)
    assert list_parts([512, 16], 0, tile, target)[0] == (1, 4)  # a plain matrix has no blocks of columns
    for blocks, rows in ((32, 512), (8, 128), (1, 64), (64, 1024)):
        ahead, across = list_parts([blocks, rows, 16], 1, tile, target)[0]
        assert blocks % ahead == 0
        assert rows % (across * tile.sizes[0]) == 0
        assert ahead * across >= min(target.cores, blocks * rows // 4)
        assert blocks // ahead * 16 * (rows // across) * 4 <= 256 * 1024


def test_cores_in_order_get_tiles_with_few_loads() -> None:
    """A Cortex-A53 starts no load beside a multiply-add: of the tiles that leave room for loads in flight, the one with
    the fewest loads a product; a Cortex-A72 has enough of them in any of these."""
    in_order, out_of_order = find_target("rpi3"), find_target("rpi4")
    assert accumulators(in_order) < accumulators(out_of_order) < in_order.registers
    for extents in ([1, 10, 10, 64], [2, 4, 4, 320], [1, 14, 14, 80]):
        small, large = (choose_tile(extents, 4, [2, 1, 0], target) for target in (in_order, out_of_order))
        loads = [1 / (tile.sizes[-1] // 4) + 2 * (tile.sizes[-1] // 4) / tile.accumulators for tile in (small, large)]
        assert small != large
        assert loads[0] < loads[1]
        assert small.accumulators <= accumulators(in_order)


@pytest.mark.parametrize(("name", "taps", "pixels"), [("rpi4", 3, 13), ("rpi4", 7, 9), ("x86-64-v3", 3, 12)])
def test_depthwise_operands_are_in_registers_too(name: str, taps: int, pixels: int) -> None:
    """On Arm; an x86 instruction reads one of them from memory."""
    target = find_target(name)
    assert most_pixels(taps, target) == pixels
    if name == "rpi4":
        assert pixels + (pixels + taps) + taps <= target.registers
