"""Each rule takes the function it is for, and fused functions keep their numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tvm import relax, te, tirx
from tvm_ffi import structural_walk

from gfcompile.codegen import kernels
from gfcompile.codegen.schedules import RULES, Workspace, choose_schedule, find_workspace, schedule
from gfcompile.codegen.schedules.choices import DEFAULTS
from gfcompile.targets import Target, find_target

NATIVE = find_target("native")
FUSION = tvm.transform.Sequential(
    [
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
    ]
)
TOLERANCE = 5e-6
op = relax.op
Body = Callable[..., Any]


def fuse(body: Body, shapes: list[tuple[int, ...]], dtypes: list[str]) -> list[tirx.PrimFunc]:
    """The functions that fusion leaves of a Relax program, in no particular order."""
    builder = relax.BlockBuilder()
    inputs = [
        relax.Var(f"input{i}", relax.TensorType(shape, dtype))
        if hasattr(relax, "TensorType")
        else relax.Var(f"input{i}", relax.TensorStructInfo(shape, dtype))
        for i, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True))
    ]
    with builder.function("main", inputs):
        with builder.dataflow():
            out = builder.emit_output(body(builder, *inputs))
        builder.emit_func_output(out)
    return [func for func in FUSION(builder.get()).functions.values() if isinstance(func, tirx.PrimFunc)]


def execute(func: tirx.PrimFunc, arrays: list[np.ndarray], target: Target = NATIVE) -> tuple[str, np.ndarray]:
    """(rule, last parameter) of the function on these inputs."""
    rule, scheduled = choose_schedule(func, target)
    module = tvm.IRModule({"main": scheduled.with_attr("global_symbol", "main")})
    out = func.params[-1]
    dtype = str(out.dtype).removeprefix("T.")
    result = tvm.runtime.tensor(np.full([int(d) for d in out.shape], 77, dtype))
    tvm.compile(module, tvm.target.Target(target.tvm))["main"](*map(tvm.runtime.tensor, arrays), result)
    return rule, result.numpy()


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.asarray(np.random.default_rng([seed, *shape]).standard_normal(shape, "float32"), "float32")


def check(got: np.ndarray, want: torch.Tensor) -> None:
    assert got.shape == tuple(want.shape)
    assert np.abs(got - want.numpy()).max() <= TOLERANCE * max(1.0, float(want.abs().max()))


def chain(*ops: Callable[..., Any]) -> Body:
    """Emit unary operators one after another."""

    def body(builder: relax.BlockBuilder, x: relax.Var) -> relax.Var:
        for operator in ops:
            x = builder.emit(operator(x))
        return x

    return body


UNARY = [
    ("reduction", (4, 9, 9, 32), chain(lambda x: op.sum(x, [0, 1, 2])), lambda x: x.sum((0, 1, 2))),
    ("reduction", (8, 28, 28, 16), chain(lambda x: op.sum(x, [0, 1, 2])), lambda x: x.sum((0, 1, 2))),  # parts
    ("reduction", (1, 31, 7, 64), chain(lambda x: op.mean(x, [0, 1, 2])), lambda x: x.mean((0, 1, 2))),
    (
        "reduction",
        (8, 14, 14, 24),
        chain(lambda x: op.variance(x, [0, 1, 2])),
        lambda x: x.var((0, 1, 2), correction=0),
    ),
    ("reduction", (8, 28, 28, 16), chain(op.sum), lambda x: x.sum()),
    ("reduction", (37,), chain(op.mean), lambda x: x.mean()),
    ("reduction", (64, 1000), chain(lambda x: op.sum(x, [1])), lambda x: x.sum(1)),
    ("reduction", (64, 1001), chain(lambda x: op.max(x, [1])), lambda x: x.amax(1)),
    ("reduction", (8, 16, 7, 8), chain(lambda x: op.sum(x, [0, 2, 3])), lambda x: x.sum((0, 2, 3))),
    ("reduction", (16, 1000), chain(op.nn.softmax), lambda x: x.softmax(-1)),
    ("reduction", (16, 10), chain(op.nn.log_softmax), lambda x: x.log_softmax(-1)),
    ("reduction", (16, 50), chain(lambda x: op.argmax(x, 1)), lambda x: x.argmax(1)),
    ("elementwise", (3, 7, 5, 3), chain(op.nn.relu, op.exp, op.negative), lambda x: -x.relu().exp()),
    ("elementwise", (8, 28, 28, 16), chain(op.nn.gelu), torch.nn.functional.gelu),
    (
        "elementwise",
        (2, 12, 14, 24),
        chain(lambda x: op.permute_dims(x, [0, 3, 1, 2])),
        lambda x: x.permute(0, 3, 1, 2),
    ),
    ("elementwise", (2, 12, 14, 24), chain(lambda x: op.reshape(x, (4, 2016))), lambda x: x.reshape(4, 2016)),
    ("elementwise", (), chain(op.negative), lambda x: -x),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "shape", "body", "oracle"), UNARY, ids=[f"{r}-{s}-{i}" for i, (r, s, *_) in enumerate(UNARY)]
)
def test_legalized_operators(rule: str, shape: tuple[int, ...], body: Body, oracle: Callable) -> None:
    (func,) = fuse(body, [shape], ["float32"])
    x = normal(*shape)
    name, got = execute(func, [x])
    assert name == rule
    check(got, oracle(torch.tensor(x).double()))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((8, 512), (512, 1000)),
        ((64, 32), (32, 10)),
        ((7, 13), (13, 24)),
        ((2, 3, 49, 16), (2, 3, 16, 49)),
        ((1, 256), (256, 96)),
    ],
)
def test_matmul_with_bias_and_relu(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    def body(builder, x, w, bias):
        return builder.emit(op.nn.relu(builder.emit(op.add(builder.emit(op.matmul(x, w)), bias))))

    arrays = [normal(*a), normal(*b, seed=1), normal(b[-1], seed=2)]
    (func,) = fuse(body, [x.shape for x in arrays], ["float32"] * 3)
    rule, got = execute(func, arrays)
    assert rule == "gemm"
    x, w, bias = (torch.tensor(t).double() for t in arrays)
    check(got, torch.relu(x @ w + bias))


@pytest.mark.slow
@pytest.mark.parametrize(("m", "n", "vectors"), [(8, 1000, 64), (7, 17, 8), (1, 1, 1), (6, 10, 13)])
def test_product_with_a_transposed_matrix_runs_along_the_reduction(m: int, n: int, vectors: int) -> None:
    k = vectors * NATIVE.lanes
    a, b = te.placeholder((m, k), "float32", name="a"), te.placeholder((n, k), "float32", name="b")
    r = te.reduce_axis((0, k), "r")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[j, r], axis=[r]), name="product")
    x, y = normal(m, k), normal(n, k, seed=1)
    rule, got = execute(
        te.create_prim_func([a, b, te.compute((m, n), lambda i, j: c[i, j] * 2.0, name="tail")]), [x, y]
    )
    assert rule == "dot"
    check(got, 2 * torch.tensor(x).double() @ torch.tensor(y).double().T)


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_few_long_sums_of_few_rows(lanes: int) -> None:
    """Wide vectors leave few tasks; cut into as many parts as there are rows, nothing would be left to add up."""
    target = Target("other", "", NATIVE.tvm, lanes, 32, 2, 1 << 18, ["cc"])
    x = te.placeholder((4, 10, 448), "float32", name="x")
    i, j = te.reduce_axis((0, 4), "i"), te.reduce_axis((0, 10), "j")
    func = te.create_prim_func([x, te.compute((448,), lambda c: te.sum(x[i, j, c], axis=[i, j]), name="sum")])
    array = normal(4, 10, 448)
    rule, got = execute(func, [array], target)
    assert rule == "reduction"
    check(got, torch.tensor(array).double().sum((0, 1)))


CONV = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}


def conv_bias_residual_relu(builder, x, w, bias, skip):
    y = builder.emit_te(lambda x, w: kernels.conv2d(x, w, **CONV), x, w, primfunc_name_hint="conv2d")
    return builder.emit(op.nn.relu(builder.emit(op.add(builder.emit(op.add(y, bias)), skip))))


@pytest.mark.slow
@pytest.mark.parametrize("size", [14, 7, 13])
def test_fused_convolution(size: int) -> None:
    """conv + bias + residual + relu is one kernel, and equals PyTorch."""
    arrays = [
        normal(2, size, size, 32),
        normal(4, 3, 3, 32, 16, seed=1),
        normal(64, seed=2),
        normal(2, size, size, 64, seed=3),
    ]
    (func,) = fuse(conv_bias_residual_relu, [a.shape for a in arrays], ["float32"] * 4)
    rule, got = execute(func, arrays)
    assert rule == "conv"
    x, w, bias, skip = (torch.tensor(a).double() for a in arrays)
    y = torch.conv2d(x.permute(0, 3, 1, 2), w.permute(0, 4, 3, 1, 2).reshape(64, 32, 3, 3), bias, padding=1)
    check(got, torch.relu(y.permute(0, 2, 3, 1) + skip))


def test_fused_convolution_keeps_its_accumulators_in_registers() -> None:
    """The only scratch beyond a tile is the padded rows of one task, not the map before its epilogue."""
    shapes = [(2, 14, 14, 32), (4, 3, 3, 32, 16), (64,), (2, 14, 14, 64)]
    (func,) = fuse(conv_bias_residual_relu, shapes, ["float32"] * 4)
    found = find_workspace(schedule(func, NATIVE))
    scratch = found.shared + found.each
    padded, result = 2 * 16 * 16 * 32 * 4, 2 * 14 * 14 * 64 * 4
    assert scratch <= padded + 2048
    assert scratch < result


def placeholders(*shapes: tuple[int, ...]) -> list[te.Tensor]:
    return [te.placeholder(shape, "float32", name=f"p{i}") for i, shape in enumerate(shapes)]


def kernel(build: Callable[..., te.Tensor], *shapes: tuple[int, ...]) -> tirx.PrimFunc:
    inputs = placeholders(*shapes)
    return te.create_prim_func([*inputs, build(*inputs)])


PAIRS = ((1, 1), (1, 1), (1, 1))
OWN = [
    ("conv", kernel(lambda x, w: kernels.conv2d(x, w, *PAIRS, 1), (1, 8, 8, 16), (1, 3, 3, 16, 16))),
    ("conv", kernel(lambda g, w: kernels.conv2d_input_grad(g, w, (8, 8), *PAIRS, 1), (1, 8, 8, 16), (1, 3, 3, 16, 16))),
    ("conv", kernel(lambda g, w: kernels.channel_mix(g, w, 1, (0, 0)), (1, 4, 4, 16), (1, 3, 3, 16, 16))),
    ("winograd", kernel(lambda x, w: kernels.winograd_conv2d(x, w, (1, 1), 4), (1, 8, 8, 16), (1, 3, 3, 16, 16))),
    ("outer", kernel(lambda g, x: kernels.conv2d_weight_grad(g, x, (3, 3), *PAIRS, 1, 16), *[(4, 12, 12, 16)] * 2)),
    ("depthwise", kernel(lambda x, w: kernels.depthwise_conv2d(x, w, *PAIRS), (1, 8, 8, 16), (3, 3, 1, 16))),
    ("outer", kernel(lambda g, x: kernels.conv2d_weight_grad(g, x, (3, 3), *PAIRS, 1, 16), *[(1, 8, 8, 16)] * 2)),
    ("gemm", kernel(lambda g, x: kernels.channel_mix_weight(g, x, 1, (3, 3), 16), *[(1, 4, 4, 16)] * 2)),
    ("reduction", kernel(lambda x: kernels.patch_mean(x, (2, 4, 0, 0, 8), (2, 4, 0, 0, 8)), (1, 8, 8, 16))),
    (
        "elementwise",
        kernel(lambda q: kernels.patch_broadcast(q, (2, 4, 0, 0, 8), (2, 4, 0, 0, 8), (8, 8)), (1, 2, 2, 16)),
    ),
    ("reduction", kernel(lambda x: kernels.adaptive_avg_pool2d(x, (1, 1)), (1, 8, 8, 16))),
]


@pytest.mark.parametrize(("rule", "func"), OWN, ids=[f"{rule}-{i}" for i, (rule, _) in enumerate(OWN)])
def test_each_kernel_meets_its_rule(rule: str, func: tirx.PrimFunc) -> None:
    assert choose_schedule(func, NATIVE)[0] == rule


def test_every_rule_has_an_example() -> None:
    named = {rule for rule, _ in OWN} | {rule for rule, *_ in UNARY} | {"gemm", "dot", "fallback"}
    assert named == {rule.name for rule in RULES}


def test_the_last_rule_takes_what_no_template_does() -> None:
    func = OWN[0][1]
    sch = tvm.s_tir.Schedule(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))
    assert RULES[-1].name == "fallback"
    assert RULES[-1].apply(sch, NATIVE, DEFAULTS)


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [4, 16])
def test_other_vector_widths_give_the_same_numbers(lanes: int) -> None:
    target = Target("other", "", NATIVE.tvm, lanes, 32, 2, 1 << 18, ["cc"])
    arrays = [normal(2, 14, 14, 32), normal(4, 3, 3, 32, 16, seed=1), normal(64, seed=2), normal(2, 14, 14, 64, seed=3)]
    (func,) = fuse(conv_bias_residual_relu, [a.shape for a in arrays], ["float32"] * 4)
    rule, got = execute(func, arrays, target)
    assert rule == "conv"
    check(got, torch.tensor(execute(func, arrays)[1]).double())


def parallel_loops(func: tirx.PrimFunc) -> list[tirx.For]:
    loops: list[tirx.For] = []
    structural_walk(func.body, [(tirx.For, loops.append)])
    return [loop for loop in loops if int(loop.kind) == int(tirx.ForKind.PARALLEL)]


def test_small_work_stays_serial_and_large_work_does_not() -> None:
    (small,) = fuse(chain(op.nn.relu), [(8, 100)], ["float32"])
    (large,) = fuse(chain(op.nn.relu), [(64, 1000)], ["float32"])
    assert not parallel_loops(schedule(small, NATIVE))
    assert parallel_loops(schedule(large, NATIVE))


def test_scheduling_leaves_the_function_it_was_given_alone() -> None:
    func = OWN[0][1]
    before = str(func)
    schedule(func, NATIVE)
    assert str(func) == before


def test_workspace_of_an_elementwise_kernel_is_nothing() -> None:
    (func,) = fuse(chain(op.nn.relu, op.exp), [(64, 1000)], ["float32"])
    assert find_workspace(schedule(func, NATIVE)) == Workspace(0, 0)
