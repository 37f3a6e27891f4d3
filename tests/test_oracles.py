"""The oracle is checked against autograd wherever the method is exact, and by hand where it is not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.geometries import Geometry, conv_geometries
from tests.oracles import exact_conv_forward, filtered_conv_gradients, patch_rows

TOLERANCE = {"rtol": 1e-10, "atol": 1e-10}  # float64 sums of a few thousand terms
SEEDS = st.integers(0, 2**16)
FEW = settings(max_examples=25, deadline=None)

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]


PLAIN = Geometry(
    batch=2,
    in_channels=3,
    out_channels=4,
    height=9,
    width=9,
    kernel=(3, 3),
    stride=(1, 1),
    padding=(1, 1),
    dilation=(1, 1),
    groups=1,
    r=2,
)


def geometry(**changes) -> Geometry:
    return replace(PLAIN, **changes)


def random_arrays(geo: Geometry, seed: int = 0) -> Arrays:
    rng = np.random.default_rng(seed)
    x, w, gy = (rng.normal(size=shape) for shape in (geo.input_shape, geo.weight_shape, geo.output_shape))
    return x, w, gy


def filtered(geo: Geometry, arrays: Arrays, mode: str = "unbiased") -> Arrays:
    return filtered_conv_gradients(*arrays, r=geo.r, mode=mode, **geo.conv_arguments)


def exact(geo: Geometry, arrays: Arrays) -> Arrays:
    x, w, gy = (torch.from_numpy(a) for a in arrays)
    b = torch.zeros(geo.out_channels, dtype=torch.float64)
    leaves = [t.requires_grad_() for t in (x, w, b)]
    gx, gw, gb = torch.autograd.grad(F.conv2d(x, w, b, **geo.conv_arguments), leaves, gy)
    return gx.numpy(), gw.numpy(), gb.numpy()


@pytest.mark.slow
@FEW
@given(conv_geometries(), SEEDS)
def test_forward_is_conv2d(geo: Geometry, seed: int) -> None:
    x, w, gy = random_arrays(geo, seed)
    b = np.arange(geo.out_channels, dtype=np.float64)
    expected = F.conv2d(*(torch.from_numpy(a) for a in (x, w, b)), **geo.conv_arguments).numpy()
    assert expected.shape == gy.shape
    np.testing.assert_allclose(exact_conv_forward(x, w, b, **geo.conv_arguments), expected, **TOLERANCE)


@FEW
@given(conv_geometries(), SEEDS)
def test_shapes_bias_and_equal_taps(geo: Geometry, seed: int) -> None:
    arrays = random_arrays(geo, seed)
    gx, gw, gb = filtered(geo, arrays)
    assert (gx.shape, gw.shape) == (geo.input_shape, geo.weight_shape)
    assert np.all(gw == gw[:, :, :1, :1])
    np.testing.assert_allclose(gb, exact(geo, arrays)[2], **TOLERANCE)


@pytest.mark.parametrize("mode", ["unbiased", "reference"])
@pytest.mark.parametrize(("groups", "channels"), [(1, (3, 4)), (4, (4, 4))])
def test_pointwise_without_filtering_is_exact(mode: str, groups: int, channels: tuple[int, int]) -> None:
    in_channels, out_channels = channels
    geo = geometry(
        kernel=(1, 1), padding=(0, 0), r=1, groups=groups, in_channels=in_channels, out_channels=out_channels
    )
    arrays = random_arrays(geo)
    for ours, theirs in zip(filtered(geo, arrays, mode), exact(geo, arrays), strict=True):
        np.testing.assert_allclose(ours, theirs, **TOLERANCE)


@pytest.mark.parametrize(
    ("kernel", "dilation"), [((3, 3), (1, 1)), ((5, 3), (1, 2)), ((2, 4), (1, 1)), ((2, 3), (3, 4)), ((1, 7), (1, 1))]
)
@pytest.mark.parametrize("padded", [True, False])
def test_gx_without_filtering_is_exact_inside_the_windows(kernel, dilation, padded: bool) -> None:
    """At r = 1 and stride 1 every tap is its own patch shift, so gx is exact on the rows some window covers."""
    middles = [d * (k - 1) // 2 for k, d in zip(kernel, dilation, strict=True)]
    padding = tuple(middles) if padded else (0, 0)
    geo = geometry(height=14, width=15, kernel=kernel, dilation=dilation, padding=padding, r=1)
    arrays = random_arrays(geo)
    top, left = (m - p for m, p in zip(middles, padding, strict=True))
    _, _, height, width = geo.output_shape
    covered = np.s_[:, :, top : top + height, left : left + width]
    gx = filtered(geo, arrays)[0]
    np.testing.assert_allclose(gx[covered], exact(geo, arrays)[0][covered], **TOLERANCE)
    gx[covered] = 0
    assert not gx.any()


@pytest.mark.parametrize(
    "geo",
    [
        geometry(r=2),
        geometry(r=4, stride=(2, 1), kernel=(3, 5)),
        geometry(r=3, stride=(2, 2), kernel=(4, 3), groups=2, in_channels=4, out_channels=6),
        geometry(r=5, stride=(2, 3), kernel=(3, 5), dilation=(2, 1)),
        geometry(r=2, groups=3, in_channels=3, out_channels=6),
    ],
)
def test_sum_of_gx_is_conserved(geo: Geometry) -> None:
    """Without padding nothing falls outside the image, so filtering moves gradient but neither adds nor drops any."""
    geo = replace(geo, height=17, width=19, padding=(0, 0))
    arrays = random_arrays(geo)
    sums, expected = (grads[0].sum(axis=(2, 3)) for grads in (filtered(geo, arrays), exact(geo, arrays)))
    np.testing.assert_allclose(sums, expected, **TOLERANCE)


@pytest.mark.parametrize("stride", [(1, 1), (2, 2), (3, 1)])
def test_gw_of_constant_maps_is_exact(stride) -> None:
    """A constant x and gy lose nothing to patch means and sums, whichever the stride."""
    geo = geometry(height=18, width=18, kernel=(1, 1), padding=(0, 0), stride=stride, r=4)
    _, w, _ = random_arrays(geo)
    arrays = (np.full(geo.input_shape, 3.0), w, np.full(geo.output_shape, 0.5))
    np.testing.assert_allclose(filtered(geo, arrays)[1], exact(geo, arrays)[1], **TOLERANCE)


def test_reference_is_unbiased_times_stride_where_the_grids_agree() -> None:
    geo = geometry(height=8, width=8, kernel=(2, 2), padding=(0, 0), stride=(2, 2))
    arrays = random_arrays(geo)
    unbiased, reference = (filtered(geo, arrays, mode) for mode in ("unbiased", "reference"))
    for ours, theirs in zip(unbiased[:2], reference[:2], strict=True):
        np.testing.assert_allclose(4 * ours, theirs, **TOLERANCE)


@pytest.mark.parametrize("groups", [1, 4])
def test_reference_dilated_variant_is_a_rotated_convolution(groups: int) -> None:
    geo = geometry(
        height=8, width=12, in_channels=4, out_channels=4, groups=groups, dilation=(5, 5), padding=(5, 5), r=2
    )
    x, w, gy = random_arrays(geo)
    g = F.avg_pool2d(torch.from_numpy(gy), 2)
    rotated = torch.from_numpy(w).flip(2, 3)
    rotated = rotated if groups == 4 else rotated.transpose(0, 1)
    q = F.conv2d(g, rotated, padding=2, dilation=2, groups=groups)
    expected = q.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3).numpy()
    np.testing.assert_allclose(filtered(geo, (x, w, gy), "reference")[0], expected, **TOLERANCE)


def test_patch_rows_centre_the_overhang() -> None:
    assert patch_rows(7, 2) == [slice(0, 1), slice(1, 3), slice(3, 5), slice(5, 7)]
    assert patch_rows(1, 8) == [slice(0, 1)]


def test_a_worked_example() -> None:
    """One channel, seven columns, stride 1, r = 2: patches [0] [1,2] [3,4] [5,6], window = patch."""
    x = np.arange(7.0).reshape(1, 1, 1, 7)
    gy = np.array([2.0, 1, 3, 0, 4, 6, 8]).reshape(1, 1, 1, 7)
    w = np.array([1.0, 10, 100]).reshape(1, 1, 1, 3)
    gx, gw, gb = filtered_conv_gradients(
        x, w, gy, r=2, stride=(1, 1), padding=(0, 1), dilation=(1, 1), groups=1, mode="unbiased"
    )
    assert gx.ravel().tolist() == [222, 222, 222, 222, 222, 777, 777]
    assert gw.ravel().tolist() == [2 * 0 + 2 * 3 + 2 * 7 + 7 * 11] * 3
    assert gb.tolist() == [24]


@pytest.mark.parametrize(
    ("geo", "reason"),
    [
        (geometry(groups=2, in_channels=4, out_channels=4), "groups=2 is neither 1 nor depthwise"),
        (geometry(groups=3, in_channels=3, out_channels=6), "groups=3 is neither 1 nor depthwise"),
        (geometry(kernel=(5, 5), padding=(0, 0)), "3 windows of 2 rows do not cover the 9 input rows"),
        (geometry(kernel=(5, 5), dilation=(2, 2), padding=(4, 4)), "needs a 3x3 kernel, not 5x5"),
        (geometry(dilation=(2, 1), padding=(2, 1)), "needs equal dilations"),
        (geometry(kernel=(2, 2), r=1), "pools to 11 patches, the output to 10"),
    ],
)
def test_reference_refuses_what_it_does_not_define(geo: Geometry, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        filtered(geo, random_arrays(geo), "reference")


def test_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="mode 'exact' is neither"):
        filtered(geometry(), random_arrays(geometry()), "exact")
