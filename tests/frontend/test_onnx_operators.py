"""Every operator of the table against ONNX Runtime, over its attributes and the opsets that changed it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx.reference import ReferenceEvaluator

from gfcompile.frontend.onnx.load import load_onnx
from gfcompile.frontend.onnx.operators import TABLE
from tests.frontend.onnx_files import ints, model_of, random, reference

IMAGE = (2, 3, 8, 7)


def case(lines: str, opset: int = 17, **values):
    first = values.get("x", IMAGE)
    return pytest.param(lines, opset, {"x": first, **values}, id=f"{lines.strip().splitlines()[-1].strip()} @{opset}")


def unary(*ops: str, opset: int = 17):
    return [case(f"y = {op}(x)", opset) for op in ops]


ARITHMETIC = [
    *unary("Abs", "Neg", "Sign", "Floor", "Ceil", "Round", "Reciprocal", "Exp", "Erf", "Sin", "Cos", "Tan", "Sinh"),
    *unary("Cosh", "Atan", "Identity"),
    *(case(f"p = Sigmoid(x)\ny = {op}(p)") for op in ("Sqrt", "Log", "Asin", "Acos")),
    *(case(f"y = {op}(x, c)", c=random(3, 1, 1)) for op in ("Add", "Sub", "Mul", "Div")),
    *(case(f"y = {op}(c, x)", c=np.float32(0.75)) for op in ("Add", "Sub", "Mul", "Div")),
    case("y = Add(x, c)", x=(3,), c=random(1, 1, 1)),  # a lone number that adds axes
    case("i = Cast<to=7>(x)\ny = Div(i, c)", c=ints(2)),
    case("i = Cast<to=7>(x)\ny = Mod(i, c)", c=ints(3)),
    case("y = Mod<fmod=1>(x, c)", c=np.float32(0.7)),
    case("p = Abs(x)\ny = Pow(p, c)", c=np.float32(1.5)),
    case("y = Pow(x, c)", c=np.float32(2)),
    case("y = Pow(c, x)", c=np.float32(2)),
    *(case(f"y = {op}(x, c, z)", c=random(1), z=random(7)) for op in ("Min", "Max", "Sum", "Mean")),
    *(
        case(f"y = {op}(x, c)", c=np.float32(0.3))
        for op in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
    ),
    case("y = Greater(c, x)", c=np.float32(0.3)),
    *(
        case(f"a = Greater(x, c)\nb = Less(x, d)\ny = {op}(a, b)", c=np.float32(0.1), d=np.float32(0.9))
        for op in ("And", "Or", "Xor")
    ),
    case("a = Greater(x, c)\ny = Not(a)", c=np.float32(0.1)),
    case("a = Greater(x, c)\ny = Where(a, x, d)", c=np.float32(0.1), d=np.float32(-1)),
    case("a = Greater(x, c)\ny = Where(a, d, c)", c=np.float32(0.1), d=np.float32(-1)),
    case("y = Where(m, x, z)", m=np.arange(7) % 2 == 0, z=random(7)),
    case("r = Log(x)\ny = IsNaN(r)"),
    case("y = Clip(x, a, b)", a=np.float32(-0.5), b=np.float32(1)),
    case("y = Clip(x, , b)", b=np.float32(1)),
    case("y = Clip(x, a)", a=np.float32(-0.5)),
    case("y = Clip<min=-0.5, max=1.0>(x)", 9),
    case('y = Einsum<equation="nchw, cd -> ndhw">(x, w)', w=random(3, 5)),
]
ACTIVATIONS = [
    *unary("Relu", "Sigmoid", "Tanh", "Softplus", "Softsign", "HardSwish"),
    *unary("Mish", opset=18),
    *unary("LeakyRelu", "Elu", "Celu", "Selu", "HardSigmoid", "ThresholdedRelu", "Shrink"),
    case("y = LeakyRelu<alpha=0.2>(x)"),
    case("y = Elu<alpha=0.7>(x)"),
    case("y = Celu<alpha=1.7>(x)"),
    case("y = Selu<alpha=1.2, gamma=2.0>(x)"),
    case("y = HardSigmoid<alpha=0.16666667, beta=0.5>(x)"),
    case("y = ThresholdedRelu<alpha=0.4>(x)"),
    case("y = Shrink<lambd=0.6, bias=0.2>(x)"),
    case("y = PRelu(x, s)", s=random(3, 1, 1)),
    case("y = PRelu(x, s)", s=random(1)),
    case("y = PRelu(x, s)", s=random(7)),
    case("y = PRelu(x, s)", x=(2, 3, 3), s=random(3, 1)),
    case("y = Gelu(x)", 20),
    case('y = Gelu<approximate="tanh">(x)', 20),
    *(case(f"y = {op}{axis}(x)", 13) for op in ("Softmax", "LogSoftmax") for axis in ("", "<axis=1>")),
    *(case(f"y = {op}{axis}(x)", 11) for op in ("Softmax", "LogSoftmax") for axis in ("", "<axis=2>", "<axis=-1>")),
]
LAYERS = [
    case("y = Conv(x, w)", w=random(4, 3, 3, 2)),
    case("y = Conv<pads=[1,1,1,1], strides=[2,1], dilations=[1,2]>(x, w, b)", w=random(4, 3, 3, 3), b=random(4)),
    case("y = Conv<pads=[0,1,2,0]>(x, w)", w=random(4, 3, 3, 3)),
    case("y = Conv<group=3>(x, w)", w=random(6, 1, 3, 3)),
    *(
        case(f'y = Conv<auto_pad="{auto}", strides=[2,3]>(x, w)', w=random(4, 3, 3, 2))
        for auto in ("SAME_UPPER", "SAME_LOWER", "VALID")
    ),
    case("y = Conv<pads=[1,1]>(x, w)", x=(2, 3, 9), w=random(4, 3, 3)),
    case("y = Conv<strides=[2,1,1]>(x, w)", x=(1, 2, 5, 4, 6), w=random(3, 2, 2, 2, 3)),
    case("y = ConvTranspose(x, w, b)", w=random(3, 4, 3, 3), b=random(4)),
    case("y = ConvTranspose<strides=[2,2], pads=[1,1,1,1], output_padding=[1,1]>(x, w)", w=random(3, 4, 3, 3)),
    case("y = ConvTranspose<strides=[2,2], pads=[0,1,2,0]>(x, w, b)", w=random(3, 4, 3, 3), b=random(4)),
    case("y = ConvTranspose<strides=[2,2], pads=[0,0,1,1], output_padding=[1,0]>(x, w)", w=random(3, 4, 3, 3)),
    case("y = ConvTranspose<strides=[3,2], output_shape=[24,15]>(x, w)", w=random(3, 4, 3, 3)),
    case("y = ConvTranspose<group=3, dilations=[2,1], strides=[1,2]>(x, w)", w=random(3, 2, 3, 3)),
    *(
        case(f'y = ConvTranspose<auto_pad="{auto}", strides=[2,3]>(x, w)', w=random(3, 4, 3, 4))
        for auto in ("SAME_UPPER", "SAME_LOWER", "VALID")
    ),
    case("y = ConvTranspose<strides=[2]>(x, w)", x=(2, 3, 5), w=random(3, 4, 3)),
    case("y = Gemm(x, w)", x=(4, 5), w=random(5, 3)),
    case("y = Gemm(x, w, b)", x=(4, 5), w=random(5, 3), b=random(3)),
    case("y = Gemm<transB=1>(x, w, b)", x=(4, 5), w=random(3, 5), b=random(3)),
    case("y = Gemm<transB=1>(x, w, b)", x=(4, 5), w=random(3, 5), b=random(4, 1)),
    case("y = Gemm<transA=1, alpha=0.5, beta=2.0>(x, w, b)", x=(5, 4), w=random(5, 3), b=random(1, 3)),
    case("y = Gemm<alpha=0.5, transB=1>(x, w)", x=(4, 5), w=random(3, 5)),
    case("y = MatMul(x, w)", x=(2, 4, 5), w=random(5, 3)),
    case("y = MatMul(w, x)", x=(2, 4, 5), w=random(3, 4)),
    case("t = Transpose<perm=[1,0]>(w)\ny = MatMul(x, t)", x=(4, 5), w=random(3, 5)),
]
NORMALIZATION = [
    *(
        case("y = BatchNormalization<epsilon=0.01>(x, s, b, m, v)", x=shape, s=random(3), b=random(3), m=random(3),
             v=np.abs(random(3)))
        for shape in ((2, 3), (2, 3, 5), IMAGE, (1, 3, 2, 3, 4))
    ),
    case("d = Abs(s)\ny = BatchNormalization(x, d, b, m, v)", s=random(3), b=random(3), m=random(3),
         v=np.abs(random(3))),
    case("y = InstanceNormalization<epsilon=0.01>(x, s, b)", s=random(3), b=random(3)),
    case("y = GroupNormalization<num_groups=2>(x, s, b)", 21, x=(2, 4, 5, 5), s=random(4), b=random(4)),
    case("y = LayerNormalization<epsilon=0.01>(x, s, b)", s=random(7), b=random(7)),
    case("y = LayerNormalization<axis=2>(x, s)", s=random(8, 7)),
    case("y = LayerNormalization<axis=1>(x, s, b)", s=random(3, 1, 1), b=random(7)),
    case("y = RMSNormalization<axis=2>(x, s)", 23, s=random(8, 7)),
    case("y = LRN<size=3, alpha=0.1, beta=0.6, bias=2.0>(x)", x=(2, 6, 4, 4)),
    case("y = LRN<size=5>(x)", x=(2, 6, 4, 4)),
    case("y = MeanVarianceNormalization(x)"),
    case("y = MeanVarianceNormalization<axes=[2,3]>(x)"),
    case("y = LpNormalization(x)"),
    case("y = LpNormalization<axis=1, p=1>(x)"),
    case("y = Dropout(x)"),
    case("y = Dropout<ratio=0.3>(x)", 9),
    case("y = Dropout(x, r)", r=np.float32(0.3)),
]  # fmt: skip
POOLING = [
    case("y = MaxPool<kernel_shape=[3,2]>(x)"),
    case("y = MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(x)"),
    case("y = MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[0,0,1,1]>(x)"),
    case("y = MaxPool<kernel_shape=[2,2], strides=[3,2], ceil_mode=1>(x)"),
    case("y = MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[0,1,1,0], ceil_mode=1>(x)"),
    case("y = MaxPool<kernel_shape=[2,2], dilations=[2,3]>(x)"),
    case('y = MaxPool<kernel_shape=[3,2], strides=[2,2], auto_pad="SAME_UPPER">(x)'),
    case('y = MaxPool<kernel_shape=[3,2], strides=[2,2], auto_pad="SAME_LOWER">(x)'),
    case("y = MaxPool<kernel_shape=[3], strides=[2]>(x)", x=(2, 3, 9)),
    case("y = MaxPool<kernel_shape=[2,2,2]>(x)", x=(1, 2, 4, 5, 4)),
    case("y = AveragePool<kernel_shape=[3,2]>(x)"),
    *(
        case(f"y = AveragePool<kernel_shape=[3,3], strides=[2,2], pads={p}, count_include_pad={c}, ceil_mode={m}>(x)",
             19)
        for p in ("[1,1,1,1]", "[0,0,1,1]", "[2,2,2,2]")
        for c in (0, 1)
        for m in (0, 1)
    ),
    case('y = AveragePool<kernel_shape=[3,2], strides=[2,2], auto_pad="SAME_UPPER">(x)'),
    case("y = AveragePool<kernel_shape=[2,2], dilations=[2,3]>(x)", 19),
    case("y = AveragePool<kernel_shape=[3], strides=[2], pads=[1,1]>(x)", x=(2, 3, 9)),
    case("y = LpPool<kernel_shape=[3,2], strides=[2,1], pads=[1,0,1,1]>(x)"),
    case("y = LpPool<kernel_shape=[2,2], p=3>(x)"),
    case("y = GlobalAveragePool(x)"),
    case("y = GlobalMaxPool(x)"),
    case("y = GlobalLpPool<p=3>(x)"),
    case("y = GlobalAveragePool(x)", x=(2, 3, 9)),
]  # fmt: skip
REDUCED = ("Mean", "Sum", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSumExp")
REDUCTIONS = [
    *(case(f"y = Reduce{op}<axes=[1,-1], keepdims=0>(x)", 11) for op in REDUCED),
    *(case(f"y = Reduce{op}(x, a)", 18, a=ints(2, 3)) for op in REDUCED),
    *(case(f"y = Reduce{op}(x)", 18) for op in REDUCED),
    case("y = ReduceSum<noop_with_empty_axes=1>(x)", 18),
    case("p = Abs(x)\ny = ReduceLogSum<keepdims=0>(p, a)", 18, a=ints(1)),
    *(case(f"y = {op}<axis=1, keepdims=0>(x)") for op in ("ArgMax", "ArgMin")),
    case("r = Round(x)\ny = ArgMax<axis=-1, select_last_index=1>(r)"),
]
SHAPES = [
    case("y = Reshape(x, s)", s=ints(0, -1, 7)),
    case("y = Reshape<allowzero=1>(x, s)", s=ints(2, -1)),
    *(case(f"y = Flatten<axis={axis}>(x)") for axis in (0, 1, 2, 4, -1)),
    case("y = Transpose(x)"),
    case("y = Transpose<perm=[0,2,3,1]>(x)"),
    case("y = Squeeze(x)", x=(1, 3, 1, 2)),
    case("y = Squeeze(x, a)", x=(1, 3, 1, 2), a=ints(-2)),
    case("y = Squeeze<axes=[0]>(x)", 11, x=(1, 3, 1, 2)),
    case("y = Unsqueeze(x, a)", a=ints(0, -1)),
    case("y = Unsqueeze<axes=[1,3]>(x)", 11, x=(2, 3)),
    case("y = Concat<axis=-3>(x, z, x)", z=random(2, 2, 8, 7)),
    case("a, b, y = Split<axis=1>(x)"),
    case("a, y = Split<axis=2>(x, s)", s=ints(3, 5)),
    case("a, y = Split<axis=2, split=[3,5]>(x)", 11),
    case("a, b, y = Split<axis=2, num_outputs=3>(x)", 18),
    case("y = Slice(x, s, e, a, t)", s=ints(1, -3), e=ints(100, 100), a=ints(2, -1), t=ints(3, 1)),
    case("y = Slice(x, s, e, a, t)", s=ints(-1, 5), e=ints(-(2**63), 0), a=ints(2, 3), t=ints(-1, -2)),
    case("y = Slice(x, s, e)", s=ints(1, 0), e=ints(2, -1)),
    case("y = Slice<starts=[1], ends=[-1], axes=[3]>(x)", 9),
    case("y = Expand(x, s)", x=(3, 1), s=ints(2, 1, 4)),
    case("y = Tile(x, r)", r=ints(1, 2, 1, 3)),
    *(case(f'y = DepthToSpace<blocksize=2, mode="{mode}">(x)', x=(2, 8, 3, 5)) for mode in ("DCR", "CRD")),
    case("y = SpaceToDepth<blocksize=2>(x)", x=(2, 3, 4, 6)),
    *(case(f"y = Cast<to={kind}>(x)") for kind in (1, 6, 7, 9, 11)),
    case("y = CastLike(x, z)", z=ints(1)),
    case("y = Trilu<upper=0>(x, k)", k=np.int64(1)),
    case("y = Trilu(x)"),
]
INDEXING = [
    case("y = Gather<axis=2>(x, i)", i=np.int64(-2)),
    case("y = Gather<axis=1>(x, i)", i=ints(2)),
    case("y = Gather<axis=-1>(x, i)", i=np.array([[0, -1], [3, 3]])),
    case("r = ArgMax<axis=1, keepdims=0>(x)\ny = Gather(w, r)", w=random(3, 4)),
    case("y = GatherElements<axis=1>(x, i)", x=(3, 4), i=np.array([[0, -1], [3, 3], [1, 2]])),
    case("y = GatherND(x, i)", x=(3, 4, 2), i=np.array([[0, 1], [2, -1]])),
    case("y = ScatterElements<axis=1>(x, i, u)", x=(2, 4), i=np.array([[0, -1]]), u=random(1, 2)),
    case('y = ScatterElements<axis=1, reduction="add">(x, i, u)', x=(2, 4), i=np.array([[1, 1]]), u=random(1, 2)),
    case('y = ScatterElements<axis=0, reduction="max">(x, i, u)', 18, x=(2, 4), i=np.array([[1, 1]]), u=random(1, 2)),
    case("y = Scatter<axis=1>(x, i, u)", 9, x=(2, 4), i=np.array([[0, 3]]), u=random(1, 2)),
    case("y = ScatterND(x, i, u)", x=(3, 4, 2), i=np.array([[0, 1], [2, -1]]), u=random(2, 2)),
    case('y = ScatterND<reduction="add">(x, i, u)', x=(3, 4, 2), i=np.array([[0, 1], [0, 1]]), u=random(2, 2)),
    case("y = CumSum(x, a)", a=np.int64(2)),
    case("y = CumSum<exclusive=1, reverse=1>(x, a)", a=np.int64(-1)),
    case("v, y = TopK<axis=1>(x, k)", k=ints(2)),
    case("v, y = TopK<largest=0>(x, k)", k=ints(3)),
    case("r = ArgMax<axis=1, keepdims=0>(x)\ny = OneHot<axis=1>(r, d, v)", d=np.int64(3), v=random(2)),
]
PADDING = [
    case("y = Pad(x, p)", p=ints(0, 0, 1, 2, 0, 0, 3, 0)),
    case("y = Pad(x, p, v)", p=ints(0, 1, 0, 0, 0, 0, 0, 0), v=np.float32(-1.5)),
    case("y = Pad(x, p)", p=ints(0, 0, -1, 2, 0, 0, 1, -2)),
    case("y = Pad(x, p, , a)", 18, p=ints(1, 2, 3, 0), a=ints(-1, 2)),
    case('y = Pad<mode="constant", pads=[0,0,1,1,0,0,1,1], value=0.5>(x)', 9),
    *(case(f'y = Pad<mode="{m}">(x, p)', p=ints(0, 0, 1, 2, 0, 0, 3, 0)) for m in ("reflect", "edge")),
    *(case(f'y = Pad<mode="{m}">(x, p)', p=ints(0, 2, 1, 0, 0, 0, 3, 1)) for m in ("reflect", "edge")),
    case('y = Pad<mode="wrap">(x, p)', 19, p=ints(0, 0, 1, 2, 0, 0, 3, 0)),
    case('y = Pad<mode="wrap">(x, p)', 19, p=ints(0, 1, 1, 2, 0, 0, 3, 0)),
]


def resize(mode: str, coordinates: str, more: str = "", opset: int = 13, **sizes):
    names = "x, , s" if "s" in sizes else "x, , , z"
    text = f'mode="{mode}", coordinate_transformation_mode="{coordinates}"{more}'
    return case(f"y = Resize<{text}>({names})", opset, x=(2, 3, 5, 6), **sizes)


COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
UP, DOWN, ODD = (np.array([1, 1, *s], np.float32) for s in ((2, 2), (0.6, 0.5), (1.7, 2.3)))
RESIZE = [
    *(resize(mode, c, s=s) for mode in ("nearest", "linear", "cubic") for c in COORDINATES for s in (UP, DOWN, ODD)),
    *(resize(mode, c, z=ints(2, 3, 7, 4)) for mode in ("nearest", "linear", "cubic") for c in COORDINATES),
    *(
        resize("nearest", c, f', nearest_mode="{r}"', s=s)
        for c in ("half_pixel", "asymmetric")
        for r in ("floor", "ceil", "round_prefer_ceil")
        for s in (UP, ODD)
    ),
    resize("nearest", "tf_half_pixel_for_nn", ', nearest_mode="floor"', s=UP),
    resize("linear", "half_pixel_symmetric", "", 19, s=ODD),
    resize("cubic", "half_pixel", ", cubic_coeff_a=-0.5", s=ODD),
    resize("cubic", "half_pixel", ", exclude_outside=1", s=UP),
    resize("linear", "pytorch_half_pixel", z=ints(2, 3, 1, 1)),
    resize("linear", "align_corners", z=ints(2, 3, 1, 4)),
    case('y = Resize<mode="linear", axes=[3,2]>(x, , , z)', 18, z=ints(11, 9)),
    case('y = Resize<mode="linear", axes=[2,3], keep_aspect_ratio_policy="not_larger">(x, , , z)', 18, z=ints(11, 20)),
    case('y = Resize<mode="linear">(x, , s)', 13, x=(2, 3, 5), s=np.array([1, 1, 2], np.float32)),
    case('y = Resize<mode="nearest">(x, s)', 10, s=UP),
    case('y = Resize<mode="linear">(x, s)', 10, s=UP),
    case('y = Upsample<mode="nearest">(x, s)', 9, s=UP),
    case('y = Upsample<mode="linear">(x, s)', 9, s=UP),
]
# sizes computed by the graph itself: nothing of it may reach torch
COMPUTED = [
    case("s = Shape(x)\nn = Gather(s, i)\nu = Unsqueeze(n, a)\nr = Concat<axis=0>(u, m)\ny = Reshape(x, r)",
         i=np.int64(0), a=ints(0), m=ints(-1)),
    case("s = Shape<start=2>(x)\nt = Mul(s, k)\nc = Shape<end=2>(x)\nz = Concat<axis=0>(c, t)\n"
         'y = Resize<mode="linear">(x, , , z)', k=ints(2, 3)),
    case("s = Shape(x)\nf = Cast<to=1>(s)\ng = Mul(f, k)\nh = Floor(g)\nz = Cast<to=7>(h)\n"
         'y = Resize<mode="nearest">(x, , , z)', k=np.array([1, 1, 1.5, 2], np.float32)),
    case("s = Shape(x)\no = ConstantOfShape<value=float[1] {0.5}>(s)\ny = Mul(x, o)"),
    case("s = Shape(x)\nw = Gather(s, i)\nr = Range(z, w, o)\nf = Cast<to=1>(r)\ny = Add(x, f)", i=np.int64(3),
         z=np.int64(0), o=np.int64(1)),
    case("s = Size(x)\nf = Cast<to=1>(s)\ny = Div(x, f)"),
    case("s = Shape(x)\nn = Gather(s, i)\nc = Equal(n, k)\ny = If(c) <then_branch = t () => (float y1) {y1 = Relu(x)}, "
         "else_branch = e () => (float y2) {y2 = Neg(x)}>", i=np.int64(1), k=np.int64(3)),
]  # fmt: skip
# by ONNX's own reference: ONNX Runtime does not run these
ELSEWHERE = [
    case("y = GroupNormalization<num_groups=2>(x, s, b)", 18, x=(2, 4, 5, 5), s=random(2), b=random(2)),
    case("y = LRN<size=4>(x)", x=(6, 6, 2, 2)),  # as many images as channels: the reference mixes the two up
    case("y = Swish<alpha=0.7>(x)", 24),
]
CASES = [
    *ARITHMETIC, *ACTIVATIONS, *LAYERS, *NORMALIZATION, *POOLING, *REDUCTIONS, *SHAPES, *INDEXING, *PADDING, *RESIZE,
    *COMPUTED,
]  # fmt: skip


def save(model, tmp_path) -> str:
    onnx.save(model, tmp_path / "net.onnx")
    return str(tmp_path / "net.onnx")


def check(model, expected, x, tmp_path) -> None:
    found = load_onnx(save(model, tmp_path)).module(x)
    found = found if isinstance(found, tuple) else (found,)
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected):
        assert ours.numpy(force=True).dtype == theirs.dtype
        np.testing.assert_allclose(ours.numpy(force=True), theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("lines", "opset", "values"), CASES)
def test_as_onnxruntime(lines, opset, values, tmp_path):
    model = model_of(lines, opset, **values)
    x = torch.from_numpy(random(*values["x"]))
    check(model, reference(model, x), x, tmp_path)


@pytest.mark.parametrize(("lines", "opset", "values"), ELSEWHERE)
def test_as_the_reference(lines, opset, values, tmp_path):
    model = model_of(lines, opset, **values)
    x = torch.from_numpy(random(*values["x"]))
    check(model, ReferenceEvaluator(model).run(None, {"x": x.numpy()}), x, tmp_path)


@pytest.mark.parametrize(("lines", "opset", "values"), COMPUTED)
def test_computed_sizes_are_integers_in_a_trace(lines, opset, values, tmp_path):
    module = load_onnx(save(model_of(lines, opset, **values), tmp_path)).module
    x = torch.from_numpy(random(*values["x"]))
    traced = torch.export.export(module, (x,), strict=False)
    targets = {str(node.target) for node in traced.graph.nodes if node.op == "call_function"}
    assert not [target for target in targets if "sym" in target or "item" in target or "arange" in target]
    torch.testing.assert_close(traced.module()(x), module(x), rtol=0, atol=0)


def test_every_operator_is_tested():
    models = [model_of(lines, opset, **values) for lines, opset, values in (p.values for p in [*CASES, *ELSEWHERE])]
    assert TABLE.keys() - {node.op_type for model in models for node in model.graph.node} == set()
