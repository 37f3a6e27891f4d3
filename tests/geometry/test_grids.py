"""Grids and their relations against their definition, pixel by pixel (docs/method.md, section 3)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gfcompile.geometry.convolution import Windows, input_windows, output_windows
from gfcompile.geometry.grids import NOWHERE, Grid, grouping, parents
from tests.geometries import conv_geometries
from tests.geometry.test_convolution import product

SIZES = st.integers(1, 20)
ALIGNED = settings(max_examples=150)


@st.composite
def windows(draw: st.DrawFn, size: int) -> Windows:
    """Any windows over an axis of `size`: overhanging, beside the image, clipped narrower than the image."""
    lo = draw(st.integers(0, size))
    hi = draw(st.just(size) | st.integers(lo, size))
    return Windows(draw(st.integers(1, 8)), draw(st.integers(1, 7)), draw(st.integers(-9, size)), lo, hi)


@st.composite
def nested(draw: st.DrawFn, size: int) -> tuple[Windows, Windows]:
    """A fine grid and a coarse one whose pitch and origin are multiples of the fine one's, clipped at will."""
    fine = draw(windows(size))
    by, shift = draw(st.integers(1, 4)), draw(st.integers(-3, 3))
    other = draw(windows(size))
    bounds = draw(st.sampled_from([(fine.lo, fine.hi), (0, size), (other.lo, other.hi)]))
    return fine, Windows(other.count, fine.pitch * by, fine.origin + shift * fine.pitch, *bounds)


def pairs() -> st.SearchStrategy[tuple[int, Windows, Windows]]:
    """A size with two windows over it, unrelated or nested."""
    return SIZES.flatmap(
        lambda size: (
            st.tuples(st.just(size), windows(size), windows(size))
            | nested(size).map(lambda two: (size, two[0], two[1]))
        )
    )


def pixels(axis: Windows, patch: int) -> set[int]:
    """The definition: pixels p of the patch's interval that lie in [lo, hi)."""
    start = patch * axis.pitch + axis.origin
    return {pixel for pixel in range(start, start + axis.pitch) if axis.lo <= pixel < axis.hi}


def cut(axis: Windows) -> list[set[int]]:
    return [pixels(axis, patch) for patch in range(axis.count)]


def expected_parents(fine: Windows, coarse: Windows) -> list[int] | None:
    found = []
    for own in cut(fine):
        inside = [index for index, other in enumerate(cut(coarse)) if own and own <= other]
        touched = any(own & other for other in cut(coarse))
        if touched and not inside:
            return None
        found.append(inside[0] if inside else NOWHERE)
    return found


@pytest.mark.slow
@ALIGNED
@given(pairs())
def test_parents(case):
    _, fine, coarse = case
    assert parents(fine, coarse) == expected_parents(fine, coarse)


@pytest.mark.parametrize(
    ("fine", "coarse", "expected"),
    [
        (Windows(4, 2, 0, 0, 8), Windows(2, 4, 0, 0, 8), [0, 0, 1, 1]),
        (Windows(4, 2, -1, 0, 7), Windows(2, 4, -1, 0, 7), [0, 0, 1, 1]),  # an overhang of half a patch
        (Windows(3, 3, 0, 0, 8), Windows(2, 4, 0, 0, 8), None),  # [3, 6) straddles 4
        (Windows(3, 3, 0, 0, 8), Windows(1, 4, 0, 0, 8), None),  # half of [3, 6) lies in no coarse patch
        (Windows(4, 2, 0, 0, 8), Windows(1, 4, 0, 0, 8), [0, 0, NOWHERE, NOWHERE]),
        (Windows(4, 2, 4, 0, 8), Windows(2, 4, 0, 0, 8), [1, 1, NOWHERE, NOWHERE]),  # empty ones after the image
        (Windows(2, 2, -4, 0, 8), Windows(2, 4, 0, 0, 8), [NOWHERE, NOWHERE]),  # and before it
        (Windows(2, 4, 0, 0, 8), Windows(4, 2, 0, 0, 8), None),  # a coarse patch has no parent among fine ones
        (Windows(2, 4, 0, 0, 2), Windows(4, 2, 0, 0, 8), [0, NOWHERE]),  # unless it is clipped to one of them
    ],
)
def test_parents_by_hand(fine, coarse, expected):
    assert parents(fine, coarse) == expected
    assert expected_parents(fine, coarse) == expected


@pytest.mark.slow
@ALIGNED
@given(pairs())
def test_groups_gather_exactly_the_patches_inside(case):
    """Window P over the fine indices holds those with pixels in coarse P, so that no pixel is lost."""
    _, fine, coarse = case
    found = grouping(fine, coarse)
    owner = expected_parents(fine, coarse)
    if owner is None:
        assert found is None
    if found is None:
        return
    assert owner is not None
    for patch, (start, stop) in enumerate(found.spans()):
        assert start == stop or 0 <= start < stop <= fine.count
        full = [index for index in range(start, stop) if pixels(fine, index)]
        assert full == [index for index, parent in enumerate(owner) if parent == patch]
    assert found.count == coarse.count


@given(SIZES, st.integers(1, 5), st.integers(1, 4))
def test_a_grid_of_a_multiple_is_grouped(size, r, by):
    """What the sink pass relies on: the same origin and a pitch that divides always group."""
    fine = Windows(-(-size // r), r, 0, 0, size)
    coarse = Windows(-(-size // (r * by)), r * by, 0, 0, size)
    found = grouping(fine, coarse)
    assert found is not None
    assert [sum(len(pixels(fine, i)) for i in range(*span)) for span in found.spans()] == list(map(len, cut(coarse)))


@pytest.mark.slow
@ALIGNED
@given(pairs(), pairs())
def test_refining_needs_both_axes(rows, cols):
    fine = Grid(rows[1], cols[1], (rows[0], cols[0]))
    coarse = Grid(rows[2], cols[2], (rows[0], cols[0]))
    answers = [expected_parents(*axis) is not None for axis in (rows[1:], cols[1:])]
    assert fine.refines(coarse) == all(answers)
    together = fine.grouped_by(coarse)
    assert together == (
        None if None in (grouping(*rows[1:]), grouping(*cols[1:])) else (grouping(*rows[1:]), grouping(*cols[1:]))
    )


@pytest.mark.slow
@ALIGNED
@given(pairs())
def test_grids_with_one_key_cut_the_image_alike(case):
    size, one, other = case
    column = Windows(1, 1, 0, 0, 1)
    left, right = Grid(one, column, (size, 1)), Grid(other, column, (size, 1))
    if left.key == right.key:
        assert cut(one) == cut(other)
    if cut(one) == cut(other) and all(cut(one)):
        assert left.key == right.key


def test_a_key_forgets_how_the_grid_is_written():
    """One patch of 8 and one of 20 that overhangs on both sides are the same patch of an 8x8 map."""
    one = Grid.of([1, 8, 0, 0, 8], [1, 8, 0, 0, 8], (8, 8))
    other = Grid.of([1, 20, -6, 0, 8], [1, 9, -1, 0, 8], (8, 8))
    assert one.key == other.key != Grid.of([2, 4, 0, 0, 8], [1, 8, 0, 0, 8], (8, 8)).key
    assert other.is_whole


@given(st.tuples(SIZES, SIZES))
def test_the_finest_and_the_coarsest(size):
    finest, coarsest = Grid.pixels(size), Grid.whole(size)
    assert [cut(axis) for axis in finest.axes] == [[{pixel} for pixel in range(extent)] for extent in size]
    assert [cut(axis) for axis in coarsest.axes] == [[set(range(extent))] for extent in size]
    assert finest.is_pixels
    assert coarsest.is_whole
    assert finest.is_whole == coarsest.is_pixels == (size == (1, 1))
    assert finest.refines(coarsest)
    assert coarsest.refines(finest) == (size == (1, 1))
    grouped = finest.grouped_by(coarsest)
    assert grouped is not None
    assert [window.spans() for window in grouped] == [[(0, extent)] for extent in size]


@ALIGNED
@given(SIZES.flatmap(lambda size: st.tuples(st.just(size), windows(size))), st.integers(1, 4), st.integers(0, 3))
def test_enlarged_replaces_every_pixel_by_a_block(case, k, rest):
    """As pooling by k sees it: pixel i of the pooled map stands for [i*k, (i+1)*k); `rest` rows are left over."""
    size, axis = case
    column = Windows(1, 1, 0, 0, 1)
    large = Grid(axis, column, (size, 1)).enlarged((k, 1), (size * k + rest, 1))
    assert cut(large.rows) == [{pixel * k + i for pixel in patch for i in range(k)} for patch in cut(axis)]
    assert cut(large.cols) == cut(column)
    assert large.size == (size * k + rest, 1)


@given(SIZES, st.integers(1, 6))
def test_output_grids_of_equal_patch_are_equal(size, r):
    """A join of two convolutions' input gradients at stride 1 adds patch values: their grids are one."""
    assert output_windows(size, r).spans() == output_windows(size, r).spans()
    assert parents(output_windows(size, r), Windows(1, size, 0, 0, size)) == [0] * -(-size // r)


@pytest.mark.slow
@ALIGNED
@given(conv_geometries(), st.integers(1, 3))
def test_parents_of_the_grids_that_convolutions_have(geometry, factor):
    """The same comparison on what the compiler meets: an input grid against output grids over the same map."""
    conv = product(geometry)
    for axis in (0, 1):
        own = input_windows(conv, axis, geometry.r)
        other = output_windows(conv.in_size[axis], geometry.r * factor)
        assert parents(own, other) == expected_parents(own, other)
        assert parents(other, own) == expected_parents(other, own)


def test_how_a_grid_is_named():
    assert str(Grid.of([4, 2, -1, 0, 7], [3, 3, 0, 0, 8], (7, 8))) == "4x3 patches of 2x3"
