"""gf operators in eager: against the oracle and plain loops, their fake shapes, torch's own checks."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only

import gfcompile.ops  # noqa: F401 - registers the operators
from gfcompile.geometry.convolution import Windows
from gfcompile.geometry.layouts import WeightLayout
from tests.geometries import Geometry, conv_geometries
from tests.oracles import filtered_conv_gradients

gf, aten = torch.ops.gf, torch.ops.aten
ROWS, COLS = [3, 2, -1, 0, 5], [2, 4, 0, 1, 7]  # overhanging, and with a clipped first column
SHAPE, GROUPED, DEPTHWISE = [16, 4, 3, 3], [6, 2, 3, 3], [4, 1, 3, 3]
ONE, TWO = [1, 1], [2, 2]


def values(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def pack(w: torch.Tensor, groups: int = 1) -> torch.Tensor:
    return WeightLayout.for_conv(list(w.shape), groups).pack(w)


def bits(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.4


def scalar(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


def last(image: torch.Tensor) -> torch.Tensor:
    return image.permute(0, 2, 3, 1).contiguous()


def indices(x: torch.Tensor) -> torch.Tensor:
    return gf.max_pool2d_nhwc(x, TWO, TWO, [0, 0], ONE, False)[1]


POOL = (TWO, TWO, [0, 0])
FINE_ROWS, FINE_COLS = [6, 1, -1, 0, 5], [5, 2, 0, 1, 7]  # nested in ROWS and COLS
DRAWN = torch.tensor([1, 2], dtype=torch.int32)  # one channel of each group
EXAMPLES = {
    "patch_sum": (values(2, 3, 5, 7), ROWS, COLS, False),
    "patch_mean": (values(2, 5, 7, 3), ROWS, COLS, True),
    "patch_broadcast": (values(2, 3, 3, 2), ROWS, COLS, [5, 7], False),
    "channel_mix": (values(2, 6, 3, 2), values(*GROUPED), 2, [0, 1]),
    "channel_mix_weight": (values(2, 6, 3, 2), values(2, 4, 3, 2), 2, [3, 3]),
    "filtered_convolution_backward": (
        (values(2, 6, 5, 5), values(2, 4, 5, 5), values(*GROUPED), ONE, ONE, ONE, 2, 2, False)
    ),
    "sgd_update": (values(2, 3), values(2, 3), values(2, 3) + 1, scalar(0.1), scalar(0.7), 0.9, 0.1, True, 2.0),
    "sgd_update_plain": (values(2, 3), values(2, 3) + 1, scalar(0.1), 0.1, 2.0),
    "sgd_gain": (scalar(1), 0.3),
    "adam_update": (
        values(2, 3),
        [values(2, 3), values(2, 3).square(), values(2, 3).square()],
        *(values(2, 1), scalar(0.1), scalar(0.1), scalar(0.01), 0.9, 0.999, 1e-8, 0.1, True, 2.0),
    ),
    "bias_correction": (scalar(5), 0.9),
    "rmsprop_update": (
        values(2, 3),
        [1 + values(2, 3).square(), values(2, 3), values(2, 3)],
        *(values(2, 1), scalar(0.1), 0.99, 1e-8, 0.1, 0.9, True, 2.0),
    ),
    "square_sum": (values(2, 1), 3),
    "clip_coefficient": ([scalar(2), scalar(3)], 0.5),
    "conv2d_nhwc": (values(2, 7, 6, 4), pack(values(*SHAPE)), SHAPE, TWO, ONE, ONE, 1),
    "conv2d_input_grad_nhwc": (values(2, 4, 3, 16), pack(values(*SHAPE)), SHAPE, [7, 6], TWO, ONE, ONE, 1),
    "conv2d_weight_grad_nhwc": (values(2, 4, 3, 16), values(2, 7, 6, 4), SHAPE, TWO, ONE, ONE, 1),
    "winograd_weight": (pack(values(16, 8, 3, 3)), [16, 8, 3, 3], 4),
    "winograd_conv2d_nhwc": (values(2, 7, 6, 8), pack(values(16, 8, 3, 3)), [1, 2], 4),
    "channel_mix_nhwc": (values(2, 3, 2, 4), pack(values(*DEPTHWISE), 4), DEPTHWISE, 4, [0, 0]),
    "channel_mix_weight_nhwc": (values(2, 3, 2, 6), values(2, 3, 2, 4), GROUPED, 2),
    "max_pool2d_nhwc": (values(2, 7, 6, 3), [3, 3], TWO, ONE, ONE, True),
    "max_pool2d_values_nhwc": (values(2, 7, 6, 3), [3, 3], TWO, ONE, ONE, True),
    "max_pool2d_backward_nhwc": ((values(2, 3, 3, 3), indices(values(2, 6, 6, 3)), [6, 6], TWO, TWO, [0, 0], ONE)),
    "avg_pool2d_nhwc": (values(2, 7, 6, 3), *POOL, True, False, 0),
    "avg_pool2d_backward_nhwc": (values(2, 3, 3, 3), [6, 6], *POOL, False, True, 3),
    "adaptive_avg_pool2d_nhwc": (values(2, 7, 6, 3), [3, 2]),
    "adaptive_avg_pool2d_backward_nhwc": (values(2, 3, 2, 3), [7, 6]),
    "pool_positions_nhwc": (indices(values(2, 6, 6, 3)), 6, TWO, TWO, [0, 0], ONE),
    "axis_map": (values(2, 3, 5, 7), 2, 9, "linear", [0.0, 0.0], False),
    "put": (values(2, 5), torch.tensor([[4, 0, 4], [1, 2, 3]]), values(2, 3), True),
    "uniform": (torch.tensor(7), 3, [2, 5]),
    "move": ([values(2, 3), values(2, 1)], torch.tensor([[0, 4], [2, 0], [1, 1]], dtype=torch.int32), [2, 3]),
    "mask_count": ([bits(2, 3, 5, 7), bits(2, 3, 5, 7, seed=1)], [True, False], ROWS, COLS, False),
    "packed_mask_count": ([torch.randint(0, 256, (27,), dtype=torch.uint8)], [True], [2, 5, 7, 3], ROWS, COLS, True),
    "pack_mask": (bits(2, 3, 5, 7),),
    "unpack_mask": (torch.randint(0, 256, (27,), dtype=torch.uint8), [2, 3, 5, 7]),
    "scale_by_area": (values(2, 3, 3, 2), ROWS, COLS, True, False),
    "regrid": (values(2, 3, 3, 2), ROWS, COLS, FINE_ROWS, FINE_COLS, False),
    "take_channels": (values(2, 4, 5, 7), DRAWN, 1, 1, False),
    "take_weights": (values(*GROUPED), DRAWN, list(GROUPED), 2),
    "put_weights": (values(*GROUPED), values(GROUPED[0], 1, *GROUPED[2:]), DRAWN, list(GROUPED), 2),
    "spread_weights": (values(5, 1, 3, 3), DRAWN[1:], [5, 4, 3, 3], 1),
}


def tuple_of(result):
    return tuple(result) if isinstance(result, tuple | list) else (result,)


def test_every_operator_has_an_example():
    names = {name.removeprefix("gf::") for name in torch._C._dispatch_get_all_op_names() if name.startswith("gf::")}
    assert names == set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_fake_shapes_are_the_real_ones(name):
    operator, arguments = getattr(gf, name), EXAMPLES[name]
    real = tuple_of(operator(*arguments))
    with FakeTensorMode() as mode:
        fakes = tree_map_only(torch.Tensor, mode.from_tensor, arguments)
        fake = tuple_of(operator(*fakes))
    for one, other in zip(real, fake, strict=True):
        assert (one.shape, one.dtype, one.stride()) == (other.shape, other.dtype, other.stride())


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_torch_accepts_the_operator(name):
    torch.library.opcheck(getattr(gf, name).default, EXAMPLES[name])


def test_patch_operators_equal_loops():
    x, rows, cols = values(2, 3, 5, 7), Windows(*ROWS).spans(), Windows(*COLS).spans()
    sums = np.zeros((2, 3, len(rows), len(cols)))
    means, spread = sums.copy(), np.zeros(x.shape)
    q = values(2, 3, 3, 2)
    for p, (top, bottom) in enumerate(rows):
        for c, (left, right) in enumerate(cols):
            window = x.numpy()[:, :, top:bottom, left:right]
            sums[:, :, p, c] = window.sum((2, 3))
            means[:, :, p, c] = window.mean((2, 3))
            spread[:, :, top:bottom, left:right] = q.numpy()[:, :, p, c, None, None]
    np.testing.assert_allclose(gf.patch_sum(x, ROWS, COLS), sums, rtol=1e-12)
    np.testing.assert_allclose(gf.patch_mean(x, ROWS, COLS), means, rtol=1e-12)
    np.testing.assert_allclose(gf.patch_broadcast(q, ROWS, COLS, [5, 7]), spread, rtol=1e-12)


@pytest.mark.parametrize("name", ["patch_sum", "patch_mean"])
def test_channels_last_is_the_same_transposed(name):
    x, operator = values(2, 3, 5, 7), getattr(gf, name)
    torch.testing.assert_close(operator(last(x), ROWS, COLS, True), last(operator(x, ROWS, COLS)))


def test_an_empty_patch_sums_and_means_to_zero():
    x, beyond = values(1, 1, 3, 3), [2, 3, 0, 0, 3]
    assert gf.patch_sum(x, beyond, beyond)[0, 0, 1].abs().max() == 0
    assert gf.patch_mean(x, beyond, beyond)[0, 0, 1].abs().max() == 0


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(conv_geometries())
def test_the_filtered_backward_equals_the_oracle(geometry):
    check_against_oracle(geometry, "unbiased")


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(conv_geometries())
def test_the_filtered_backward_equals_the_oracle_in_reference_mode(geometry):
    check_against_oracle(geometry, "reference")


def check_against_oracle(geometry: Geometry, mode: str) -> None:
    x, w, gy = values(*geometry.input_shape), values(*geometry.weight_shape), values(*geometry.output_shape)
    try:
        oracle = filtered_conv_gradients(
            x.numpy(), w.numpy(), gy.numpy(), r=geometry.r, mode=mode, **geometry.conv_arguments
        )
    except ValueError:
        assert mode == "reference"
        return
    settings_ = (list(geometry.stride), list(geometry.padding), list(geometry.dilation), geometry.groups)
    result = gf.filtered_convolution_backward(gy, x, w, *settings_, geometry.r, mode == "reference")
    for expected, actual in zip(oracle, result, strict=True):
        np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-9, atol=1e-9 * (1 + np.abs(expected).max()))


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(conv_geometries())
def test_exact_convolutions_equal_pytorch(geometry):
    shape, groups = list(geometry.weight_shape), geometry.groups
    x, w, gy = values(*geometry.input_shape), values(*shape), values(*geometry.output_shape)
    pairs = (list(geometry.stride), list(geometry.padding), list(geometry.dilation))
    y = F.conv2d(x, w, None, *pairs, groups)
    gx, gw, _ = aten.convolution_backward(gy, x, w, None, *pairs, False, [0, 0], groups, [True, True, False])
    packed, size = pack(w, groups), [geometry.height, geometry.width]
    torch.testing.assert_close(gf.conv2d_nhwc(last(x), packed, shape, *pairs, groups), last(y))
    torch.testing.assert_close(gf.conv2d_input_grad_nhwc(last(gy), packed, shape, size, *pairs, groups), last(gx))
    weight_grad = gf.conv2d_weight_grad_nhwc(last(gy), last(x), shape, *pairs, groups)
    torch.testing.assert_close(weight_grad, pack(gw, groups))


@pytest.mark.parametrize(("shape", "groups"), [(SHAPE, 1), (GROUPED, 2), (DEPTHWISE, 4)])
@pytest.mark.parametrize("taps", [[0, 0], [1, 2], [2, 0]])
def test_mixing_with_packed_weights_is_the_same(shape, groups, taps):
    w, g, x_tilde = values(*shape), values(2, shape[0], 3, 4), values(2, shape[1] * groups, 3, 4)
    mixed = gf.channel_mix_nhwc(last(g), pack(w, groups), shape, groups, taps)
    torch.testing.assert_close(mixed, last(gf.channel_mix(g, w, groups, taps)))
    gw = gf.channel_mix_weight_nhwc(last(g), last(x_tilde), shape, groups)
    torch.testing.assert_close(gw, pack(gf.channel_mix_weight(g, x_tilde, groups, shape[2:]), groups))


@pytest.mark.parametrize("ceil_mode", [False, True])
def test_max_pooling_equals_pytorch(ceil_mode):
    x = values(2, 3, 7, 6).requires_grad_()
    y = F.max_pool2d(x, 3, 2, 1, ceil_mode=ceil_mode)
    gy = values(*y.shape)
    (gx,) = torch.autograd.grad(y, x, gy)
    pooled, index = gf.max_pool2d_nhwc(last(x.detach()), [3, 3], TWO, ONE, ONE, ceil_mode)
    torch.testing.assert_close(pooled, last(y.detach()))
    alone = gf.max_pool2d_values_nhwc(last(x.detach()), [3, 3], TWO, ONE, ONE, ceil_mode)
    torch.testing.assert_close(alone, pooled)
    spread = gf.max_pool2d_backward_nhwc(last(gy), index, [7, 6], [3, 3], TWO, ONE, ONE)
    torch.testing.assert_close(spread, last(gx))


@pytest.mark.parametrize(("ceil_mode", "count_pad", "divisor"), [(False, True, 0), (True, False, 0), (True, True, 5)])
def test_average_pooling_equals_pytorch(ceil_mode, count_pad, divisor):
    x = values(2, 3, 7, 6).requires_grad_()
    y = F.avg_pool2d(x, 3, 2, 1, ceil_mode, count_pad, divisor or None)
    gy = values(*y.shape)
    (gx,) = torch.autograd.grad(y, x, gy)
    given_ = ([3, 3], TWO, ONE, ceil_mode, count_pad, divisor)
    torch.testing.assert_close(gf.avg_pool2d_nhwc(last(x.detach()), *given_), last(y.detach()))
    torch.testing.assert_close(gf.avg_pool2d_backward_nhwc(last(gy), [7, 6], *given_), last(gx))


def test_adaptive_pooling_equals_pytorch():
    x = values(2, 3, 7, 6).requires_grad_()
    y = F.adaptive_avg_pool2d(x, (3, 2))
    gy = values(*y.shape)
    (gx,) = torch.autograd.grad(y, x, gy)
    torch.testing.assert_close(gf.adaptive_avg_pool2d_nhwc(last(x.detach()), [3, 2]), last(y.detach()))
    torch.testing.assert_close(gf.adaptive_avg_pool2d_backward_nhwc(last(gy), [7, 6]), last(gx))


def counted(masks: list[np.ndarray], wanted: list[bool], rows: list[int], cols: list[int]) -> np.ndarray:
    """Pixel by pixel: where every mask has its wanted value, one more in the patch that holds the pixel."""
    agree = np.all([mask == value for mask, value in zip(np.broadcast_arrays(*masks), wanted, strict=True)], axis=0)
    total = np.zeros((*agree.shape[:2], rows[0], cols[0]), int)
    for p, (top, bottom) in enumerate(Windows(*rows).spans()):
        for c, (left, right) in enumerate(Windows(*cols).spans()):
            for y in range(top, bottom):
                for x in range(left, right):
                    total[:, :, p, c] += agree[:, :, y, x]
    return total


GRIDS = {
    "clipped": ([3, 2, -1, 0, 5], [2, 4, 0, 1, 7]),
    "beside": ([4, 2, -4, 0, 5], [3, 4, 0, 0, 7]),  # two empty patches before the map, one after it
    "partial": ([1, 3, 1, 0, 5], [2, 2, 3, 0, 7]),  # most of the map lies in no patch
    "whole": ([1, 5, 0, 0, 5], [1, 7, 0, 0, 7]),
    "larger": ([1, 20, -7, 0, 5], [1, 20, -6, 0, 7]),  # r larger than the map
    "pixels": ([5, 1, 0, 0, 5], [7, 1, 0, 0, 7]),
}


@pytest.mark.parametrize("wanted", [[True], [False], [True, False], [False, False, True]])
@pytest.mark.parametrize("grid", GRIDS)
def test_mask_counts_equal_loops(grid, wanted):
    """Whole and packed, in both layouts; 2*3*5*7 elements are no multiple of eight."""
    masks = [bits(2, 3, 5, 7, seed=seed) for seed in range(len(wanted))]
    expected = counted([mask.numpy() for mask in masks], wanted, *GRIDS[grid])
    count = gf.mask_count(masks, wanted, *GRIDS[grid])
    np.testing.assert_array_equal(count, expected)
    np.testing.assert_array_equal(gf.mask_count([last(m) for m in masks], wanted, *GRIDS[grid], True), last(count))
    packed = [gf.pack_mask(mask) for mask in masks]
    np.testing.assert_array_equal(gf.packed_mask_count(packed, wanted, [2, 3, 5, 7], *GRIDS[grid]), expected)
    packed = [gf.pack_mask(last(mask)) for mask in masks]
    np.testing.assert_array_equal(
        gf.packed_mask_count(packed, wanted, [2, 5, 7, 3], *GRIDS[grid], True), last(torch.tensor(expected))
    )


@pytest.mark.parametrize(("edge", "dtype"), [(15, torch.uint8), (16, torch.int32), (20, torch.int32)])
def test_counts_beyond_a_byte(edge, dtype):
    """A patch of 15x15 fits a byte, one of 16x16 does not: every pixel true is the largest count."""
    mask, windows = torch.ones(1, 1, 40, 41, dtype=torch.bool), [3, edge, 0, 0, 40]
    for count in (
        gf.mask_count([mask], [True], windows, windows),
        gf.packed_mask_count([gf.pack_mask(mask)], [True], [1, 1, 40, 41], windows, windows),
    ):
        assert count.dtype is dtype
        np.testing.assert_array_equal(count, counted([mask.numpy()], [True], windows, windows))
        assert count.max() == edge * edge


def test_a_mask_of_one_channel_counts_for_all():
    """A gate a pixel, [N, 1, H, W], beside masks of every channel: eager and the inferred shape agree."""
    wide, narrow = bits(2, 3, 5, 7), bits(2, 1, 5, 7, seed=1)
    for masks in ([wide, narrow], [narrow, wide]):
        count = gf.mask_count(masks, [True, False], ROWS, COLS)
        np.testing.assert_array_equal(count, counted([m.numpy() for m in masks], [True, False], ROWS, COLS))
        with FakeTensorMode() as mode:
            fake = gf.mask_count([mode.from_tensor(mask) for mask in masks], [True, False], ROWS, COLS)
        assert fake.shape == count.shape


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(0, 99))
def test_packing_equals_numpy_and_unpacks(shape, seed):
    mask = bits(*shape, seed=seed)
    packed = gf.pack_mask(mask)
    np.testing.assert_array_equal(packed, np.packbits(mask.numpy().reshape(-1), bitorder="little"))
    assert torch.equal(gf.unpack_mask(packed, shape), mask)


def test_packing_follows_the_logical_order_of_a_permuted_mask():
    mask = bits(2, 3, 5, 7).permute(0, 2, 3, 1)
    assert torch.equal(gf.pack_mask(mask), gf.pack_mask(mask.contiguous()))


@pytest.mark.parametrize("grid", GRIDS)
def test_scaling_by_the_area(grid):
    rows, cols = GRIDS[grid]
    q = values(2, 3, rows[0], cols[0])
    high, wide = ([stop - start for start, stop in Windows(*axis).spans()] for axis in (rows, cols))
    area = np.outer(high, wide)
    np.testing.assert_allclose(gf.scale_by_area(q, rows, cols, False), q.numpy() * area, rtol=1e-15)
    inverse = np.divide(1, area, where=area > 0, out=np.zeros(area.shape))
    divided = gf.scale_by_area(q, rows, cols, True)
    np.testing.assert_allclose(divided, q.numpy() * inverse, rtol=1e-15)
    for inverted in (False, True):
        same = gf.scale_by_area(last(q), rows, cols, inverted, True)
        torch.testing.assert_close(same, last(gf.scale_by_area(q, rows, cols, inverted)))


@pytest.mark.parametrize(
    ("coarse", "fine"),
    [
        ((ROWS, COLS), (FINE_ROWS, FINE_COLS)),
        ((ROWS, COLS), GRIDS["pixels"]),
        (GRIDS["partial"], GRIDS["pixels"]),  # pixels in no coarse patch: zero
        (GRIDS["beside"], GRIDS["pixels"]),
        (GRIDS["larger"], (ROWS, COLS)),
        ((ROWS, COLS), (ROWS, COLS)),
        (GRIDS["whole"], ([4, 2, -4, 0, 5], [2, 9, -9, 0, 7])),  # fine patches that hold no pixel: zero
    ],
)
def test_regridding_reads_the_value_at_any_pixel_of_the_patch(coarse, fine):
    """M_fine(U_coarse(q)): spread at full resolution, then averaged."""
    q = values(2, 3, coarse[0][0], coarse[1][0])
    expected = gf.patch_mean(gf.patch_broadcast(q, *coarse, [5, 7]), *fine)
    found = gf.regrid(q, *coarse, *fine)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gf.regrid(last(q), *coarse, *fine, True), last(found))
