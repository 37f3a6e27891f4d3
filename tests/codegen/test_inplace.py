"""Kernels in place: which inputs may be written over, each refusal, and that those that may compute the same there."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import te, tirx

from gfcompile.codegen.arena import Placement
from gfcompile.codegen.build import KernelBuilder, check_in_place, object_of
from gfcompile.codegen.inplace import explain_refusal, find_takeovers
from gfcompile.codegen.kernels.update import sgd_update
from gfcompile.codegen.program import Buffer, Call, Program
from gfcompile.codegen.schedules import schedule
from gfcompile.codegen.scheduling import Scheduler
from gfcompile.errors import ContractError
from gfcompile.runtime.library import aligned_empty
from gfcompile.targets import find_target
from tests.codegen.test_program import MODELS, real_program

NATIVE = find_target("native")
SHAPE = (4, 6)


def kernel(define: Callable[..., Any], *shapes: tuple[int, ...], dtypes: str = "float32") -> tirx.PrimFunc:
    """The unscheduled function of a te definition: inputs x0, x1, ... and then the outputs."""
    inputs = [te.placeholder(shape, name=f"x{i}", dtype=dtypes) for i, shape in enumerate(shapes)]
    outputs = define(*inputs)
    return te.create_prim_func([*inputs, *(outputs if isinstance(outputs, tuple) else (outputs,))])


def like(x: te.Tensor, value: Callable[..., Any], name: str = "y") -> te.Tensor:
    return te.compute(x.shape, value, name=name)


def stencil(x: te.Tensor) -> te.Tensor:
    return like(x, lambda i, j: x[i, j] + te.if_then_else(j > 0, x[i, te.max(j - 1, 0)], 0.0))


def through_a_stage(x: te.Tensor) -> te.Tensor:
    middle = like(x, lambda i, j: x[i, j] * 2.0, "middle")
    return like(x, lambda i, j: middle[i, 5 - j])


def residual_product(a: te.Tensor, b: te.Tensor, residual: te.Tensor) -> te.Tensor:
    """relu(a @ b + residual): a reduction whose epilogue reads the residual at its own place."""
    k = te.reduce_axis((0, a.shape[1]), name="k")
    product = te.compute(residual.shape, lambda i, j: te.sum(a[i, k] * b[k, j], k), name="product")
    added = like(product, lambda i, j: product[i, j] + residual[i, j], "added")
    return like(product, lambda i, j: te.max(added[i, j], 0.0))


def reduced_twice(x: te.Tensor) -> te.Tensor:
    k = te.reduce_axis((0, x.shape[1]), name="k")
    total = te.compute((x.shape[0],), lambda i: te.sum(x[i, k], k), name="total")
    return like(x, lambda i, j: x[i, j] / total[i])


def two_outputs(x: te.Tensor) -> tuple[te.Tensor, te.Tensor]:
    return like(x, lambda *at: x(*at) + 1.0, "first"), like(x, lambda *at: x(*at) * 2.0, "second")


REFUSALS: list[tuple[Callable[..., Any], list[tuple[int, ...]], int, int, str]] = [
    (stencil, [SHAPE], 1, 0, "y reads x0 elsewhere than it writes"),
    (lambda x: like(x, lambda i, j: x[j, i]), [(5, 5)], 1, 0, "y reads x0 elsewhere than it writes"),
    (lambda x: like(x, lambda i, j: x[i, 5 - j]), [SHAPE], 1, 0, "y reads x0 elsewhere than it writes"),
    (lambda x: like(x, lambda i, j: x[i, j] + x[i, 0]), [SHAPE], 1, 0, "y reads x0 elsewhere than it writes"),
    (through_a_stage, [SHAPE], 1, 0, "y reads middle elsewhere than it writes"),
    (lambda x, b: like(x, lambda i, j: x[i, j] + b[0, j]), [SHAPE, (1, 6)], 2, 1, "x1 and y differ in size"),
    (lambda x: like(x, lambda i, j: x[i, j] > 0.0), [SHAPE], 1, 0, "x0 and y differ in size"),
    (reduced_twice, [SHAPE], 1, 0, "total is a reduction"),
    (residual_product, [(6, 6), (6, 6), (6, 6)], 3, 0, "product is a reduction"),
    (residual_product, [(6, 6), (6, 6), (6, 6)], 3, 2, "product is a reduction"),  # legal, but slow without noalias
    (two_outputs, [SHAPE], 1, 0, "x0 reaches first, second"),
    (lambda x, y: like(x, lambda *at: x(*at)), [SHAPE, SHAPE], 2, 1, "x1 reaches no output"),
    (
        lambda x: like(x, lambda *at: tirx.call_pure_extern("float32", "shift", x(*at))),
        [SHAPE],
        1,
        0,
        "y calls tirx.call_pure_extern",
    ),
]


@pytest.mark.parametrize(("define", "shapes", "output", "source", "reason"), REFUSALS)
def test_refusals(define, shapes, output, source, reason):
    function = kernel(define, *shapes)
    assert explain_refusal(function, output, source) == reason
    assert (output - len(shapes), source) not in find_takeovers(function)


def test_an_update_of_two_tensors_is_not_found_here():
    """It overwrites by construction, which its own two stages see to; the analysis does not know such pairs."""
    settings = {"momentum": 0.9, "weight_decay": 0.1, "nesterov": False, "lr_factor": 1.0}
    function = kernel(lambda w, v, g, lr: sgd_update(w, v, g, lr, None, **settings), SHAPE, SHAPE, SHAPE, ())
    assert find_takeovers(function) == frozenset()


def stored_in_pieces(shape: tuple[int, int], body: str) -> tirx.PrimFunc:
    """A function that te cannot write: what the analysis must not take for one store an element."""
    text = f"""
@T.prim_func(private=True, s_tir=True)
def main(x: T.Buffer({shape}, "float32"), y: T.Buffer({shape}, "float32")):
    with T.sblock("root"):
        {body}
"""
    return tvm.script.from_source(text)


PIECES = {
    "y does not write y in the order of its axes": """
        for i, j in T.grid(4, 6):
            with T.sblock("y"):
                vi, vj = T.axis.remap("SS", [i, j])
                y[vi, 0] = x[vi, 0] + T.float32(1)""",
    "y is more than one store": """
        for i, j in T.grid(4, 6):
            with T.sblock("y"):
                vi, vj = T.axis.remap("SS", [i, j])
                y[vi, vj] = x[vi, vj]
                y[vi, vj] = y[vi, vj] + x[vi, vj]""",
    "y is written in several stages": """
        for i, j in T.grid(4, 6):
            with T.sblock("fill"):
                vi, vj = T.axis.remap("SS", [i, j])
                y[vi, vj] = T.float32(0)
        for i, j in T.grid(4, 6):
            with T.sblock("y"):
                vi, vj = T.axis.remap("SS", [i, j])
                y[vi, vj] = x[vi, vj]""",
    "x is written": """
        for i, j in T.grid(4, 6):
            with T.sblock("y"):
                vi, vj = T.axis.remap("SS", [i, j])
                y[vi, vj] = x[vi, vj]
        for i, j in T.grid(4, 6):
            with T.sblock("x"):
                vi, vj = T.axis.remap("SS", [i, j])
                x[vi, vj] = T.float32(0)""",
}


@pytest.mark.parametrize("reason", PIECES)
def test_refusals_of_what_te_cannot_write(reason):
    assert explain_refusal(stored_in_pieces(SHAPE, PIECES[reason].strip()), 1, 0) == reason


def biased(x: te.Tensor, b: te.Tensor) -> te.Tensor:
    return like(x, lambda i, j: x[i, j] * 0.5 + b[0, j])


def shrunk(x: te.Tensor) -> te.Tensor:
    return like(x, lambda *at: te.max(te.exp(x(*at)) - 1.0, 0.0))


def chained(x: te.Tensor, mask: te.Tensor) -> te.Tensor:
    scaled = like(x, lambda *at: x(*at) * 3.0, "scaled")
    return like(x, lambda *at: tirx.Select(mask(*at) > 0.0, scaled(*at), x(*at)))


def flattened(x: te.Tensor) -> te.Tensor:
    size = int(np.prod([int(extent) for extent in x.shape]))
    return te.compute((size,), lambda i: x[i // x.shape[1], i % x.shape[1]] + 1.0, name="y")


# kernel, shapes of its inputs, the pairs it allows
ALLOWED: list[tuple[Callable[..., Any], list[tuple[int, ...]], set[tuple[int, int]]]] = [
    (biased, [(8, 48), (1, 48)], {(0, 0)}),
    (shrunk, [(96, 200)], {(0, 0)}),  # in parallel and in vectors
    (shrunk, [(7, 5)], {(0, 0)}),  # an odd size: the axes are flattened
    (chained, [(8, 33), (8, 33)], {(0, 0), (0, 1)}),
    (flattened, [(8, 33)], {(0, 0)}),
]


@pytest.mark.parametrize(("define", "shapes", "pairs"), ALLOWED)
def test_what_may_be_taken_over_computes_the_same_there(define, shapes, pairs):
    function = kernel(define, *shapes)
    assert find_takeovers(function) == pairs
    run = compiled(function)
    shape = [int(extent) for extent in function.params[-1].shape]
    apart = run(normal(shapes), aligned_empty(shape, "float32"))
    for _, source in sorted(pairs):
        arrays = normal(shapes)
        assert np.array_equal(run(arrays, arrays[source].reshape(shape)), apart)


def normal(shapes: list[tuple[int, ...]]) -> list[np.ndarray]:
    """The same arrays every time, aligned as the kernels want them."""
    arrays = [aligned_empty(shape, "float32") for shape in shapes]
    for seed, array in enumerate(arrays):
        array[...] = np.random.default_rng(seed).standard_normal(array.shape)
    return arrays


def compiled(function: tirx.PrimFunc) -> Callable[[list[np.ndarray], np.ndarray], np.ndarray]:
    """As the builder compiles a kernel that runs in place, but for the calling convention."""
    scheduled = schedule(function, NATIVE).with_attr("global_symbol", "main").with_attr("tirx.noalias", False)
    main = tvm.compile(tvm.IRModule({"main": scheduled}), tvm.target.Target(NATIVE.tvm))["main"]

    def run(arrays: list[np.ndarray], out: np.ndarray) -> np.ndarray:
        main(*map(tvm.runtime.from_dlpack, arrays), tvm.runtime.from_dlpack(out))
        return out

    return run


def test_a_stencil_in_place_would_be_wrong():
    """A test of the test above: the refused kernel, run over its input, gives other numbers."""
    run = compiled(kernel(stencil, (64, 64)))
    (x,) = normal([(64, 64)])
    apart = run([x], aligned_empty((64, 64), "float32"))
    assert not np.array_equal(run([x], x), apart)


INDICES = {
    "i": lambda i, j: i,
    "j": lambda i, j: j,
    "i_mirrored": lambda i, j: 4 - i,
    "previous_j": lambda i, j: te.max(j - 1, 0),
    "zero": lambda i, j: 0 * i,
    "j_round": lambda i, j: (j + 5) % 5,
    "half_i": lambda i, j: i // 2,
}


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.sampled_from(sorted(INDICES)), st.sampled_from(sorted(INDICES))), min_size=1, max_size=3))
def test_allowed_means_every_element_is_read_at_its_own_place(reads):
    """The same by trying every element: [5, 5] has no two places that could be mistaken for each other."""
    rows = [(INDICES[row], INDICES[column]) for row, column in reads]
    function = kernel(lambda x: like(x, lambda i, j: sum(x[r(i, j), c(i, j)] for r, c in rows)), (5, 5))
    plain = {name: index if name != "previous_j" else lambda i, j: max(j - 1, 0) for name, index in INDICES.items()}
    own = all(
        (plain[row](i, j), plain[column](i, j)) == (i, j) for row, column in reads for i in range(5) for j in range(5)
    )
    assert find_takeovers(function) == (frozenset({(0, 0)}) if own else frozenset())


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_schedules_keep_what_the_analysis_promised(model):
    """Every pair found on a real kernel still holds of its schedule."""
    program = real_program(model, "train")
    promised = 0
    for name, pairs in program.takeovers.items():
        scheduled, function = schedule(program.functions[name], NATIVE), program.functions[name]
        inputs = next(len(call.inputs) for call in program.calls if call.kernel == name)
        assert len(function.params) > inputs
        for output, source in pairs:
            assert explain_refusal(scheduled, inputs + output, source) is None, name
            promised += 1
    assert promised > 3


def test_a_schedule_that_breaks_the_promise_is_our_bug():
    with pytest.raises(ContractError) as caught:
        check_in_place("gf_kernel_y", kernel(stencil, SHAPE), {(0, 0)})
    expected = "kernel 'gf_kernel_y' cannot run in place as it is scheduled: y reads x0 elsewhere than it writes"
    assert str(caught.value) == expected


@pytest.mark.parametrize("in_place", ["overwrites", "shared", "nothing"])
def test_a_kernel_in_place_anywhere_is_built_without_noalias(in_place, tmp_path, monkeypatch):
    """Two programs have the same kernel under two names; one of them runs it in place."""
    promises = {}
    bare = "gfcompile.codegen.build._bare"
    original = __import__("gfcompile.codegen.build", fromlist=["_bare"])._bare

    def record(function: tirx.PrimFunc, symbol: str, noalias: bool) -> tirx.PrimFunc:
        promises[symbol] = noalias
        return original(function, symbol, noalias)

    monkeypatch.setattr(bare, record)
    buffers = [Buffer(name, SHAPE, "float32") for name in "xy"]
    builder = KernelBuilder(Scheduler(NATIVE))
    for name, shared in (("train", {1: 0}), ("predict", {})):
        program = Program(name, buffers, [Call(f"{name}_k", (0,), (1,))], [1], [], {f"{name}_k": kernel(shrunk, SHAPE)})
        where = {in_place: shared} if in_place != "nothing" else {}
        builder.add(program, Placement({}, where.get("overwrites", {}), 64, where.get("shared", {})))
    built = builder.build(tmp_path, lambda *_: None)
    symbol = built.symbols["train"]["train_k"]
    assert re.fullmatch(r"gf_kernel_train_k_[0-9a-f]{12}", symbol)
    assert built.symbols == {"train": {"train_k": symbol}, "predict": {"predict_k": symbol}}
    assert promises == {symbol: in_place == "nothing"}


def test_an_object_is_made_in_memory() -> None:
    """LLVM itself would end the process where a file cannot be written, as on a full disk."""
    function = kernel(stencil, SHAPE).with_attr("global_symbol", "stencil")
    assert object_of(tirx.build(tvm.IRModule({"stencil": function}), "llvm"))[:4] == b"\x7fELF"
