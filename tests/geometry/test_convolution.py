"""Windows of patches against their definition, row by row (docs/method.md, section 1)."""

from math import ceil, floor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gfcompile.geometry.convolution import (
    ConvGeometry,
    Windows,
    input_windows,
    mix_dilation,
    output_windows,
    reference_input_windows,
    why_reference_refuses,
)
from gfcompile.geometry.filtering import FilterRecipe
from tests.geometries import Geometry, conv_geometries
from tests.oracles import _check_reference_defines, _reference_axis

SIZES, EDGES = st.integers(1, 40), st.integers(1, 9)


def product(geometry: Geometry) -> ConvGeometry:
    return ConvGeometry(
        geometry.batch,
        geometry.in_channels,
        geometry.out_channels,
        (geometry.height, geometry.width),
        geometry.output_shape[2:],
        geometry.kernel,
        geometry.stride,
        geometry.padding,
        geometry.dilation,
        geometry.groups,
    )


def rows(windows: Windows) -> list[list[int]]:
    return [list(range(start, stop)) for start, stop in windows.spans()]


def test_the_example_of_the_method():
    assert rows(output_windows(7, 2)) == [[0], [1, 2], [3, 4], [5, 6]]


@given(SIZES, EDGES)
def test_output_patches_cut_the_plane_into_pieces(size, r):
    patches = rows(output_windows(size, r))
    assert [row for patch in patches for row in patch] == list(range(size))
    assert len(patches) == ceil(size / r)
    assert all(1 <= len(patch) <= r for patch in patches)
    assert all(len(patch) == r for patch in patches[1:-1])


@given(SIZES, EDGES)
def test_the_overhang_is_centred_with_the_larger_half_first(size, r):
    windows = output_windows(size, r)
    before, after = -windows.origin, windows.count * r + windows.origin - size
    assert 0 <= before - after <= 1


@pytest.mark.slow
@given(conv_geometries())
def test_input_windows_are_what_the_middle_tap_sees(geometry):
    """Row by row: output row o of the patch, seen through the middle tap, covers s rows from o*s + m."""
    conv = product(geometry)
    for axis in (0, 1):
        stride = conv.stride[axis]
        middle = floor(conv.dilation[axis] * (conv.kernel[axis] - 1) / 2) - conv.padding[axis]
        image = range(conv.in_size[axis])
        expected = [
            [row for o in patch for row in range(o * stride + middle, (o + 1) * stride + middle) if row in image]
            for patch in rows(output_windows(conv.out_size[axis], geometry.r))
        ]
        assert rows(input_windows(conv, axis, geometry.r)) == expected


@pytest.mark.slow
@given(conv_geometries())
def test_spans_lie_within_the_image(geometry):
    conv = product(geometry)
    for axis in (0, 1):
        for make in (input_windows, reference_input_windows):
            for start, stop in make(conv, axis, geometry.r).spans():
                assert start == stop or 0 <= start < stop <= conv.in_size[axis]


def test_the_reference_is_refused_where_a_window_of_one_row_pools_to_another_count():
    """r = s = 1 and one row more out than in: the published pooling gives out + 1 patches."""
    conv = ConvGeometry(1, 1, 1, (4, 4), (5, 5), (2, 2), (1, 1), (1, 1), (1, 1), 1)
    expected = "the reference formulas cut the input into more patches than the output here"
    assert why_reference_refuses(conv, 1) == expected


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(conv_geometries())
def test_the_reference_is_refused_exactly_where_the_oracle_has_no_definition(geometry):
    conv = product(geometry)
    try:
        _check_reference_defines(geometry.weight_shape, geometry.r, geometry.dilation, geometry.groups)
        axes = [
            _reference_axis(*axis, r=geometry.r)
            for axis in zip(conv.in_size, conv.out_size, conv.stride, conv.dilation, strict=True)
        ]
    except ValueError:
        assert why_reference_refuses(conv, geometry.r) is not None
        return
    assert why_reference_refuses(conv, geometry.r) is None
    for axis, oracle in enumerate(axes):
        windows = rows(reference_input_windows(conv, axis, geometry.r))
        assert windows == [list(range(patch.start, patch.stop)) for patch in oracle.inputs]


@pytest.mark.parametrize(
    ("dilation", "r", "kernel", "expected"),
    [(1, 2, 3, 0), (1, 1, 3, 1), (2, 2, 3, 1), (3, 2, 3, 2), (4, 2, 3, 2), (5, 2, 3, 3), (4, 4, 3, 1), (4, 2, 1, 0)],
)
def test_dilation_on_the_patch_grid(dilation, r, kernel, expected):
    """0 where d < r: the taps share a patch and are summed; otherwise d/r rounded, and at least 1."""
    conv = ConvGeometry(1, 1, 1, (9, 9), (9, 9), (kernel, kernel), (1, 1), (1, 1), (dilation, dilation), 1)
    assert mix_dilation(conv, 0, r) == expected


@pytest.mark.slow
@given(conv_geometries())
def test_the_unbiased_recipe_carries_the_strides(geometry):
    assert FilterRecipe.of(product(geometry), geometry.r, False).scale == 1 / (geometry.stride[0] * geometry.stride[1])
    assert FilterRecipe.of(product(geometry), geometry.r, True).scale == 1


@pytest.mark.parametrize(("groups", "out", "expected"), [(1, 4, False), (4, 4, True), (4, 8, False), (2, 4, False)])
def test_depthwise_means_one_channel_in_and_out_a_group(groups, out, expected):
    conv = ConvGeometry(1, 4, out, (5, 5), (5, 5), (3, 3), (1, 1), (1, 1), (1, 1), groups)
    assert conv.is_depthwise is expected


def test_one_channel_is_not_depthwise():
    assert not ConvGeometry(1, 1, 1, (5, 5), (5, 5), (3, 3), (1, 1), (1, 1), (1, 1), 1).is_depthwise
