"""Kernels of the patch calculus, scheduled and compiled, against their operators in eager PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import gfcompile.ops  # noqa: F401 - registers the operators
from gfcompile.codegen import kernels
from gfcompile.geometry.convolution import Windows, input_windows, output_windows
from gfcompile.geometry.grids import parents
from tests.codegen.test_kernels import EXAMPLES, MANY, check, normal, run
from tests.geometries import Geometry, conv_geometries
from tests.geometry.test_convolution import product
from tests.selection import often

gf = torch.ops.gf
Axis = tuple[int, int, int, int, int]
SIZE = (9, 10)
GRIDS: dict[str, tuple[Axis, Axis]] = {
    "even": ((3, 3, 0, 0, 9), (5, 2, 0, 0, 10)),
    "overhang": ((5, 2, -1, 0, 9), (3, 4, -1, 0, 10)),
    "clipped": ((2, 4, 1, 2, 7), (2, 6, -3, 1, 8)),
    "beside": ((5, 3, -6, 0, 9), (4, 4, 0, 0, 10)),  # patches before and after the map hold no pixel
    "nothing": ((2, 3, 12, 0, 9), (2, 4, 0, 0, 10)),  # no patch holds one
    "whole": ((1, 9, 0, 0, 9), (1, 10, 0, 0, 10)),
    "larger": ((1, 20, -5, 0, 9), (1, 20, -5, 0, 10)),
    "pixels": ((9, 1, 0, 0, 9), (10, 1, 0, 0, 10)),
    "partial": ((2, 2, 3, 0, 9), (1, 4, 5, 0, 10)),
}


def bits(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).random(shape) < 0.4


def eager(name: str, *arguments: object) -> np.ndarray:
    """The operator on NumPy's arrays; a tuple is a list of them or a grid's axis."""
    result = getattr(gf, name)(*(_torch(argument) for argument in arguments))
    return result.numpy()


def _torch(argument: object) -> object:
    if isinstance(argument, list | tuple):
        return [_torch(item) for item in argument]
    return torch.from_numpy(argument) if isinstance(argument, np.ndarray) else argument


def count(masks: list[np.ndarray], wanted: list[bool], grid: tuple[Axis, Axis]) -> None:
    """Whole and packed masks give the operator's counts, in the operator's type."""
    want = eager("mask_count", masks, wanted, *grid, True)
    options = {"wanted": wanted, "rows": grid[0], "cols": grid[1], "dtype": str(want.dtype)}
    (got,) = run(lambda *held, **rest: kernels.mask_count(list(held), **rest), *masks, **options)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)
    if len({mask.shape for mask in masks}) == 1:
        packed = [eager("pack_mask", mask) for mask in masks]
        options["shape"] = masks[0].shape
        (got,) = run(lambda *held, **rest: kernels.packed_mask_count(list(held), **rest), *packed, **options)
        np.testing.assert_array_equal(got, want)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("grid", "channels"),
    often(
        [(grid, channels) for grid in GRIDS for channels in (3, 16)],
        [*((grid, 3) for grid in GRIDS), ("overhang", 16), ("nothing", 16)],
    ),
)
def test_mask_count(grid: str, channels: int) -> None:
    count([bits(2, *SIZE, channels)], [True], GRIDS[grid])


@pytest.mark.slow
@pytest.mark.parametrize("wanted", [[False], [True, False], [False, False, True]])
def test_masks_that_must_agree(wanted: list[bool]) -> None:
    count([bits(2, *SIZE, 5, seed=seed) for seed in range(len(wanted))], wanted, GRIDS["overhang"])


def test_a_mask_of_one_channel() -> None:
    """A gate a pixel beside a mask of every channel."""
    count([bits(2, *SIZE, 5), bits(2, *SIZE, 1, seed=1)], [True, False], GRIDS["clipped"])


@pytest.mark.slow
@pytest.mark.parametrize("edge", [15, 16, 20])
def test_counts_beyond_a_byte(edge: int) -> None:
    """Every pixel true: 225 fits a byte, 256 and 400 do not."""
    axis = (3, edge, -1, 0, 40)
    count([np.ones((1, 40, 40, 2), bool)], [True], (axis, axis))


@pytest.mark.parametrize("shape", [(8,), (3,), (2, 3, 5, 7), (1, 4, 4, 16), (1, 1, 1, 1), (2, 9, 10, 3)])
def test_packing_and_unpacking(shape: tuple[int, ...]) -> None:
    mask = bits(*shape)
    (packed,) = run(kernels.pack_mask, mask)
    np.testing.assert_array_equal(packed, eager("pack_mask", mask))
    np.testing.assert_array_equal(packed, np.packbits(mask.reshape(-1), bitorder="little"))
    (unpacked,) = run(kernels.unpack_mask, packed, shape=shape)
    np.testing.assert_array_equal(unpacked, mask)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("grid", "inverse"),
    often(
        [(grid, inverse) for grid in GRIDS for inverse in (False, True)],
        [*((grid, True) for grid in GRIDS), ("overhang", False), ("nothing", False)],
    ),
)
def test_scale_by_area(grid: str, inverse: bool) -> None:
    rows, cols = GRIDS[grid]
    q = normal(2, rows[0], cols[0], 5)
    (got,) = run(kernels.scale_by_area, q, rows=rows, cols=cols, inverse=inverse)
    check(got, eager("scale_by_area", q, rows, cols, inverse, True))


def check_regrid(coarse: tuple[Axis, Axis], fine: tuple[Axis, Axis], channels: int = 5) -> None:
    q = normal(2, coarse[0][0], coarse[1][0], channels)
    options = {"rows": coarse[0], "cols": coarse[1], "to_rows": fine[0], "to_cols": fine[1]}
    check(run(kernels.regrid, q, **options)[0], eager("regrid", q, *coarse, *fine, True))


@pytest.mark.parametrize("grid", often(GRIDS, ["overhang", "clipped", "beside", "nothing", "partial"]))
def test_regrid_to_pixels(grid: str) -> None:
    """Every grid is refined by the pixels: those in no patch take zero."""
    check_regrid(GRIDS[grid], GRIDS["pixels"])


@pytest.mark.parametrize("grid", often(GRIDS, ["overhang", "clipped", "beside", "nothing", "larger", "pixels"]))
def test_regrid_of_one_patch(grid: str) -> None:
    """The coarsest grid, which every one refines: patches without a pixel take zero."""
    check_regrid(GRIDS["whole"], GRIDS[grid], channels=16)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("coarse", "fine"),
    [
        ((2, 6, -3, 1, 8), (6, 2, -3, 1, 8)),  # clipped alike
        ((2, 6, -3, 0, 9), (5, 3, -6, 0, 9)),  # the fine grid reaches further, before and after
        ((1, 4, 2, 0, 9), (5, 2, 0, 0, 9)),  # the coarse one does not cover the map
        ((2, 4, 0, 0, 6), (4, 2, 0, 0, 9)),  # it ends inside the map: [6, 8) lies in none
        ((2, 4, 0, 2, 9), (4, 2, 0, 0, 9)),  # it begins inside the map: [0, 2) lies in none
        ((3, 4, -2, 0, 9), (3, 4, -2, 0, 9)),  # itself
        ((2, 5, -1, 0, 9), (2, 7, -3, 0, 9)),  # unequal pitches, equal cuts
    ],
)
def test_regrid_between_grids(coarse: Axis, fine: Axis) -> None:
    columns = GRIDS["whole"][1]
    assert parents(Windows(*fine), Windows(*coarse)) is not None, "no example: the grids do not nest"
    check_regrid((coarse, columns), (fine, columns))
    check_regrid(((1, 9, 0, 0, 9), coarse), ((3, 3, 0, 0, 9), fine))


@pytest.mark.slow
@EXAMPLES
@given(conv_geometries(), st.integers(1, 4))
@example(Geometry(2, 3, 4, 8, 8, (3, 3), (2, 2), (1, 1), (1, 1), 1, 2), 2)
def test_between_the_grids_of_two_convolutions(shape: Geometry, patch: int) -> None:
    """What the compiler asks for: from the input grid of one layer to the output grid of the one before it.

    Where the output grid refines the input grid its values are moved; the masks of both are counted.
    """
    check_two_convolutions(shape, patch)


@pytest.mark.coverage
@MANY
@given(conv_geometries(), st.integers(1, 4))
def test_between_the_grids_of_many_convolutions(shape: Geometry, patch: int) -> None:
    check_two_convolutions(shape, patch)


def check_two_convolutions(shape: Geometry, patch: int) -> None:
    conv = product(shape)
    coarse, fine = [], []
    for axis in (0, 1):
        coarse.append(tuple(input_windows(conv, axis, shape.r).as_list()))
        fine.append(tuple(output_windows(conv.in_size[axis], patch).as_list()))
    image = (shape.batch, shape.height, shape.width, shape.in_channels)
    for grid in (coarse, fine):
        count([bits(*image), bits(*image, seed=1)], [False, True], (grid[0], grid[1]))
    if all(parents(Windows(*f), Windows(*c)) is not None for f, c in zip(fine, coarse, strict=True)):
        check_regrid((coarse[0], coarse[1]), (fine[0], fine[1]), shape.in_channels)
