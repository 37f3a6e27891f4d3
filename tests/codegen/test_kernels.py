"""Every kernel, scheduled and compiled, against PyTorch in float64 or direct NumPy loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tvm import te

from gfcompile.codegen import kernels
from gfcompile.codegen.kernels.update import sgd_update
from gfcompile.codegen.schedules import schedule
from gfcompile.geometry.layouts import block_size
from gfcompile.targets import find_target
from tests.geometries import Geometry, conv_geometries

NATIVE = find_target("native")
TOLERANCE = 5e-6  # of the largest value: float32 sums of up to some thousand terms against float64
EXAMPLES = settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
MANY = settings(EXAMPLES, max_examples=60)  # for `make coverage`


def run(define: Callable[..., Any], /, *arrays: np.ndarray, **options: Any) -> list[np.ndarray]:
    """The kernel on these arrays, scheduled for this machine. Outputs start as garbage, so an unwritten one shows."""
    inputs = [te.placeholder(a.shape, str(a.dtype), name=f"input{i}") for i, a in enumerate(arrays)]
    result = define(*inputs, **options)
    outputs = result if isinstance(result, tuple) else (result,)
    func = schedule(te.create_prim_func([*inputs, *outputs]), NATIVE).with_attr("global_symbol", "main")
    library = tvm.compile(tvm.IRModule({"main": func}), tvm.target.Target(NATIVE.tvm))
    kinds = [str(o.dtype).removeprefix("T.") for o in outputs]
    tensors = [tvm.runtime.tensor(a) for a in arrays]
    tensors += [
        tvm.runtime.tensor(np.full([int(d) for d in o.shape], 77, k)) for o, k in zip(outputs, kinds, strict=True)
    ]
    library["main"](*tensors)
    return [tensor.numpy() for tensor in tensors[len(arrays) :]]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape, "float32")


def check(got: np.ndarray, want: np.ndarray | torch.Tensor) -> None:
    want = np.asarray(want)
    assert got.shape == want.shape
    assert np.abs(got - want).max(initial=0) <= TOLERANCE * max(1.0, np.abs(want).max(initial=0))


def nchw(x: np.ndarray) -> torch.Tensor:
    return torch.tensor(x).permute(0, 3, 1, 2).double()


def nhwc(x: torch.Tensor) -> np.ndarray:
    return x.detach().permute(0, 2, 3, 1).numpy()


def pack(w: np.ndarray, kb: int) -> np.ndarray:
    """[Co,Ci,kh,kw] -> [Co/kb,kh,kw,Ci,kb]"""
    co, ci, kh, kw = w.shape
    return np.ascontiguousarray(w.reshape(co // kb, kb, ci, kh, kw).transpose(0, 3, 4, 2, 1))


def pack_depthwise(w: np.ndarray) -> np.ndarray:
    """[C,1,kh,kw] -> [kh,kw,1,C]"""
    return np.ascontiguousarray(w.transpose(2, 3, 1, 0))


def geometry(n: int, ci: int, co: int, hw: tuple[int, int], k: int, s: int, p: int, d: int = 1, g: int = 1) -> Geometry:
    return Geometry(n, ci, co, *hw, (k, k), (s, s), (p, p), (d, d), g, r=2)


SHAPES = [
    geometry(2, 16, 32, (14, 14), 3, 1, 1),  # packed blocks of 16, no odd edge
    geometry(4, 32, 48, (7, 7), 3, 1, 1),  # tiled over the batch
    geometry(1, 64, 24, (7, 5), 1, 1, 0),  # pointwise, blocks of 8
    geometry(2, 16, 16, (15, 13), 3, 2, 1),  # stride that leaves pixels over
    geometry(2, 3, 16, (23, 23), 7, 2, 3),  # a stem
    geometry(2, 8, 16, (9, 9), 1, 2, 0),  # strided pointwise: most pixels see no tap
    geometry(1, 8, 10, (9, 8), 4, 3, 2),  # even kernel, stride 3, blocks of 10
    geometry(2, 8, 8, (13, 11), 3, 1, 3, d=3),  # dilation
    geometry(1, 8, 8, (13, 11), 3, 2, 2, d=2),  # dilation and stride
    geometry(2, 16, 32, (8, 8), 3, 1, 1, g=4),  # groups
    geometry(2, 6, 12, (8, 9), 3, 2, 1, g=6),  # depth multiplier
    geometry(1, 4, 1, (6, 6), 2, 1, 0),  # one output channel
    geometry(1, 1, 7, (5, 5), 3, 1, 4),  # more padding than the kernel reaches
    geometry(1, 64, 512, (7, 7), 3, 1, 1),  # weights larger than L2: channels outside
    geometry(2, 32, 32, (28, 28), 3, 1, 1, g=32),  # depthwise
    geometry(2, 8, 8, (9, 8), 3, 2, 0, g=8),  # depthwise and strided, its padding not "same"
    geometry(2, 24, 24, (15, 14), 3, 2, 1, g=24),
    geometry(1, 5, 5, (9, 9), 5, 2, 4, d=2, g=5),
]


def is_depthwise(shape: Geometry) -> bool:
    return shape.groups == shape.in_channels == shape.out_channels and shape.groups > 1


def check_conv(shape: Geometry) -> None:
    """Forward, gradient of the input and gradient of the weight."""
    n, co, oh, ow = shape.output_shape
    x, w = normal(n, shape.height, shape.width, shape.in_channels), normal(*shape.weight_shape, seed=1)
    gy = normal(n, oh, ow, co, seed=2)
    tx, tw = nchw(x).requires_grad_(), torch.tensor(w).double().requires_grad_()
    y = torch.conv2d(tx, tw, **shape.conv_arguments)
    y.backward(nchw(gy))
    assert tx.grad is not None
    assert tw.grad is not None
    gw = tw.grad.numpy()
    axes = {"stride": shape.stride, "padding": shape.padding, "dilation": shape.dilation}
    hw = (shape.height, shape.width)
    if is_depthwise(shape):
        packed = pack_depthwise(w)
        check(run(kernels.depthwise_conv2d, x, packed, **axes)[0], nhwc(y))
        check(run(kernels.depthwise_conv2d_input_grad, gy, packed, input_hw=hw, **axes)[0], nhwc(tx.grad))
        check(run(kernels.depthwise_conv2d_weight_grad, gy, x, kernel=shape.kernel, **axes)[0], pack_depthwise(gw))
    kb = block_size(co, shape.groups)
    packed, axes = pack(w, kb), {**axes, "groups": shape.groups}
    check(run(kernels.conv2d, x, packed, **axes)[0], nhwc(y))
    check(run(kernels.conv2d_input_grad, gy, packed, input_hw=hw, **axes)[0], nhwc(tx.grad))
    check(run(kernels.conv2d_weight_grad, gy, x, kernel=shape.kernel, kb=kb, **axes)[0], pack(gw, kb))


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_convolution_and_its_gradients(shape: Geometry) -> None:
    check_conv(shape)


@pytest.mark.slow
@EXAMPLES
@given(conv_geometries())
def test_convolution_of_any_geometry(shape: Geometry) -> None:
    check_conv(shape)


def test_check_rejects_a_wrong_result() -> None:
    """The comparison itself: one tap off by a thousandth must not pass."""
    x, w = normal(1, 6, 6, 8), normal(8, 8, 3, 3, seed=1)
    want = nhwc(torch.conv2d(nchw(x), torch.tensor(w).double(), padding=1))
    w[0, 0, 1, 1] += 1e-3
    got = run(kernels.conv2d, x, pack(w, 8), stride=(1, 1), padding=(1, 1), dilation=(1, 1), groups=1)[0]
    with pytest.raises(AssertionError):
        check(got, want)


@pytest.mark.parametrize(
    ("co", "groups", "want"), [(64, 1, 16), (24, 1, 8), (10, 1, 10), (17, 1, 1), (21, 1, 7), (32, 4, 8)]
)
def test_block_size_divides_the_channels_of_a_group(co: int, groups: int, want: int) -> None:
    assert block_size(co, groups) == want
    assert co // groups % want == 0


Axis = tuple[int, int, int, int, int]
axes_of_windows = st.tuples(
    st.integers(1, 4), st.integers(1, 4), st.integers(-3, 2), st.integers(-2, 4), st.integers(5, 12)
)


def windows(axis: Axis, size: int) -> list[range]:
    n, pitch, origin, lo, hi = axis
    return [
        range(max(p * pitch + origin, lo, 0), max(0, lo, min((p + 1) * pitch + origin, hi, size))) for p in range(n)
    ]


@pytest.mark.slow
@EXAMPLES
@given(axes_of_windows, axes_of_windows, st.sampled_from((1, 3, 8, 32)))
@example((4, 2, -1, 0, 7), (4, 2, -1, 0, 7), 16)  # the method's own overhang: L=7, r=2
@example((2, 4, 20, 0, 9), (2, 4, 0, 0, 9), 8)  # windows beyond the image are empty
def test_patch_sum_mean_and_broadcast(rows: Axis, cols: Axis, channels: int) -> None:
    x, q = normal(2, 9, 10, channels), normal(2, rows[0], cols[0], channels, seed=1)
    total = np.zeros(q.shape)
    mean, spread = np.zeros(q.shape), np.zeros(x.shape)
    for p, height in enumerate(windows(rows, 9)):
        for v, width in enumerate(windows(cols, 10)):
            region = np.ix_(range(2), height, width)
            total[:, p, v] = x[region].astype(float).sum((1, 2))
            mean[:, p, v] = total[:, p, v] / max(1, len(height) * len(width))
            spread[region] = q[:, None, None, p, v]
    check(run(kernels.patch_sum, x, rows=rows, cols=cols)[0], total)
    check(run(kernels.patch_mean, x, rows=rows, cols=cols)[0], mean)
    check(run(kernels.patch_broadcast, q, rows=rows, cols=cols, hw=(9, 10))[0], spread)


def mix(g: np.ndarray, w: np.ndarray, groups: int, taps: tuple[int, int]) -> np.ndarray:
    """The formula of `channel_mix` tap by tap; w [Co,Ci/g,kh,kw]."""
    n, p, q, co = g.shape
    _, ci_group, kh, kw = w.shape
    out = np.zeros((n, p, q, ci_group * groups))
    for u in range(kh):
        for v in range(kw):
            up = taps[0] * (kh - 1) // 2 - u * taps[0]
            left = taps[1] * (kw - 1) // 2 - v * taps[1]
            shifted = np.zeros(g.shape)
            for i in range(p):
                for j in range(q):
                    if 0 <= i + up < p and 0 <= j + left < q:
                        shifted[:, i, j] = g[:, i + up, j + left]
            for group in range(groups):
                rows = slice(group * co // groups, (group + 1) * co // groups)
                cols = slice(group * ci_group, (group + 1) * ci_group)
                out[..., cols] += shifted[..., rows] @ w[rows, :, u, v].astype(float)
    return out


@pytest.mark.slow
@pytest.mark.parametrize("taps", [(0, 0), (1, 1), (2, 0), (0, 3)])
@pytest.mark.parametrize(
    ("ci", "co", "groups", "kernel", "grid"),
    [
        (32, 16, 1, (3, 3), (4, 4)),
        (8, 12, 2, (3, 2), (3, 5)),
        (6, 6, 6, (3, 3), (4, 3)),
        (16, 16, 16, (2, 3), (2, 2)),
        (5, 7, 1, (1, 1), (1, 3)),
    ],
)
def test_channel_mix(ci: int, co: int, groups: int, kernel: tuple[int, int], grid: tuple[int, int], taps) -> None:
    g, w = normal(2, *grid, co), normal(co, ci // groups, *kernel, seed=1)
    want = mix(g, w, groups, taps)
    kb = block_size(co, groups)
    check(run(kernels.channel_mix, g, pack(w, kb), groups=groups, taps=taps)[0], want)
    if groups == ci == co:
        check(run(kernels.channel_mix, g, pack_depthwise(w), groups=groups, taps=taps, depthwise=True)[0], want)


@pytest.mark.parametrize(("ci", "co", "groups"), [(32, 16, 1), (8, 12, 2), (16, 16, 16), (5, 7, 1)])
def test_channel_mix_weight(ci: int, co: int, groups: int) -> None:
    g, x_tilde, kernel = normal(2, 3, 4, co), normal(2, 3, 4, ci, seed=1), (3, 2)
    products = np.einsum("npqo,npqc->oc", g.astype(float), x_tilde)
    own = [products[o, o // (co // groups) * (ci // groups) :][: ci // groups] for o in range(co)]
    want = np.broadcast_to(np.array(own)[:, :, None, None], (co, ci // groups, *kernel))
    kb = block_size(co, groups)
    check(run(kernels.channel_mix_weight, g, x_tilde, groups=groups, kernel=kernel, kb=kb)[0], pack(want, kb))
    if groups == ci == co:
        options = {"groups": groups, "kernel": kernel, "kb": kb, "depthwise": True}
        check(run(kernels.channel_mix_weight, g, x_tilde, **options)[0], pack_depthwise(want))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("k", "s", "p", "d", "ceil", "channels"),
    [
        (3, 2, 1, 1, False, 16),
        (2, 2, 0, 1, True, 8),
        (3, 1, 1, 2, False, 3),
        (3, 3, 0, 1, True, 8),
        (5, 2, 2, 1, False, 1),
    ],
)
def test_max_pool_and_its_gradient(k: int, s: int, p: int, d: int, ceil: bool, channels: int) -> None:
    x = np.round(normal(2, 13, 11, channels) * 2)  # many equal values: the first one must win
    tx = nchw(x).requires_grad_()
    y, index = torch.nn.functional.max_pool2d(tx, k, s, p, d, ceil_mode=ceil, return_indices=True)
    rows, cols = (np.arange(size) * s - p for size in y.shape[2:])
    taps = (index.numpy() // 11 - rows[:, None]) // d * k + (index.numpy() % 11 - cols) // d
    out = (y.shape[2], y.shape[3])
    pairs = {"kernel": (k, k), "stride": (s, s), "padding": (p, p), "dilation": (d, d)}
    values, winners = run(kernels.max_pool2d_with_indices, x, out_hw=out, dtype="uint8", **pairs)
    check(values, nhwc(y))
    assert winners.dtype == np.uint8
    np.testing.assert_array_equal(winners, nhwc(torch.from_numpy(taps)))
    gy = normal(2, *out, channels, seed=1)
    y.backward(nchw(gy))
    assert tx.grad is not None
    check(run(kernels.max_pool2d_backward, gy, winners, input_hw=(13, 11), **pairs)[0], nhwc(tx.grad))


@pytest.mark.slow
@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize(
    ("k", "s", "p", "ceil", "divisor"),
    [(3, 2, 1, False, None), (2, 2, 0, True, None), (3, 3, 1, True, None), (3, 1, 1, False, 5)],
)
def test_avg_pool_and_its_gradient(k: int, s: int, p: int, ceil: bool, divisor: int | None, include: bool) -> None:
    x = normal(2, 13, 11, 8)
    tx = nchw(x).requires_grad_()
    y = torch.nn.functional.avg_pool2d(tx, k, s, p, ceil, include, divisor)
    pairs = {"kernel": (k, k), "stride": (s, s), "padding": (p, p)}
    rule = {"count_include_pad": include, "divisor_override": divisor}
    check(run(kernels.avg_pool2d, x, out_hw=(y.shape[2], y.shape[3]), **pairs, **rule)[0], nhwc(y))
    gy = normal(2, y.shape[2], y.shape[3], 8, seed=1)
    y.backward(nchw(gy))
    assert tx.grad is not None
    check(run(kernels.avg_pool2d_backward, gy, input_hw=(13, 11), **pairs, **rule)[0], nhwc(tx.grad))


@pytest.mark.parametrize("out", [(1, 1), (7, 7), (3, 5), (14, 14), (20, 9)])
def test_adaptive_avg_pool_and_its_gradient(out: tuple[int, int]) -> None:
    x = normal(2, 14, 14, 8)
    tx = nchw(x).requires_grad_()
    y = torch.nn.functional.adaptive_avg_pool2d(tx, out)
    check(run(kernels.adaptive_avg_pool2d, x, out_hw=out)[0], nhwc(y))
    gy = normal(2, *out, 8, seed=1)
    y.backward(nchw(gy))
    assert tx.grad is not None
    check(run(kernels.adaptive_avg_pool2d_backward, gy, input_hw=(14, 14))[0], nhwc(tx.grad))


@pytest.mark.parametrize("shape", [(64, 64), (3, 5), (256, 130)])
def test_sgd_update_in_place(shape: tuple[int, int]) -> None:
    """Outputs are the inputs' own memory, as the driver runs it: v' must come from the old w."""
    w, v, g = (te.placeholder(shape, "float32", name=name) for name in "wvg")
    lr = te.placeholder((), "float32", name="lr")
    new_w, new_v = sgd_update(w, v, g, lr, None, momentum=0.9, weight_decay=0.1, nesterov=False, lr_factor=1.0)
    func = schedule(te.create_prim_func([w, v, g, lr, new_w, new_v]), NATIVE)
    func = func.without_attr("tirx.noalias").with_attr("global_symbol", "main")
    main = tvm.compile(tvm.IRModule({"main": func}), tvm.target.Target(NATIVE.tvm))["main"]
    old_w, old_v, grad = (normal(*shape, seed=seed) for seed in range(3))
    tw, tv = tvm.runtime.tensor(old_w), tvm.runtime.tensor(old_v)
    main(tw, tv, tvm.runtime.tensor(grad), tvm.runtime.tensor(np.array(0.5, "float32")), tw, tv)
    velocity = 0.9 * old_v + grad + 0.1 * old_w
    check(tv.numpy(), velocity)
    check(tw.numpy(), old_w - 0.5 * velocity)
