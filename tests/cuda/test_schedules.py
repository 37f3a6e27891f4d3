"""Templates for GPUs: kernels run in the emulator, with races and bounds checked, against plain loops."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tvm import te, tirx
from tvm.ir import assert_structural_equal

from gfcompile.codegen import kernels, schedules
from gfcompile.codegen.cuda.launches import cut, make_source
from gfcompile.codegen.program import make_program
from gfcompile.codegen.schedules import choose_schedule
from gfcompile.codegen.schedules.choices import Decisions
from gfcompile.codegen.schedules.gpu import matmul
from gfcompile.codegen.schedules.gpu.matmul import TILES, Tile, choose_tile
from gfcompile.codegen.scheduling import Scheduler, kernel_key
from gfcompile.errors import ContractError
from gfcompile.frontend.losses import resolve_loss
from gfcompile.job import Job
from gfcompile.settings.schema import Request
from gfcompile.stages import lower_job
from gfcompile.targets import Target, find_target
from gfcompile.tuning.space import Candidate, draw, list_templates
from tests.cuda.emulator import EmulatorError, build
from tests.cuda.kernels import Emulated, Plain, random_inputs
from tests.models.zoo import ZOO
from tests.selection import fast, often

NANO, ORIN = find_target("jetson-nano"), find_target("jetson-orin")
TOLERANCE = 1e-5  # of the largest value: sums of a few thousand terms in another order
FILTERED = Request(layers=2, r={"*": 2})
EXACT = Request(train=("*",), exact=True, batchnorm="train")


def kernels_of(model: str, request: Request) -> dict[str, tirx.PrimFunc]:
    """The distinct kernels of all programs of a small network's step."""
    job = Job(ZOO[model](), (torch.randn(2, 3, 16, 16),), resolve_loss("cross_entropy"), request)
    lowered, scheduler = lower_job(job, "cuda"), Scheduler(NANO)
    found = {}
    for name, module in lowered.modules.items():
        program = make_program(name, module, lowered.steps[name], scheduler)
        for kernel, function in program.functions.items():
            found.setdefault(kernel_key(function), (f"k{len(found)}_{kernel[:50]}", function))
    return dict(found.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "request_"),
    often([("grouped", FILTERED), ("separable", EXACT), ("squeeze_excite", FILTERED)], [("grouped", FILTERED)]),
)
def test_every_kernel_of_a_step(tmp_path: Path, model: str, request_: Request) -> None:
    functions = kernels_of(model, request_)
    assert len(functions) > 30
    compare(functions, Emulated(functions, NANO, tmp_path))


def compare(functions: dict[str, tirx.PrimFunc], emulated: Emulated) -> None:
    plain = Plain(functions)
    for name, function in functions.items():
        inputs = random_inputs(function)
        for found, expected in zip(emulated.run(name, inputs), plain.run(name, inputs), strict=True):
            assert found.dtype == expected.dtype
            scale = np.abs(expected).max(initial=0, where=np.isfinite(expected)) if expected.size else 0
            np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE * max(float(scale), 1e-3), err_msg=name)


def kernel(make: object, *shapes: tuple[int, ...]) -> tirx.PrimFunc:
    tensors = [te.placeholder(shape, "float32", f"t{index}") for index, shape in enumerate(shapes)]
    return te.create_prim_func([*tensors, make(*tensors)])  # type: ignore[operator]


def test_intermediates_lie_apart_in_the_workspace() -> None:
    def times(x: te.Tensor, factor: float) -> te.Tensor:
        return te.compute(x.shape, lambda *at: x[at] * factor)

    nests = cut(kernel(lambda x: times(times(times(x, 2.0), 3.0), 5.0), (33, 5)))
    assert len(nests.offsets) == 2
    ends = [*nests.offsets[1:], nests.workspace]
    assert all(end - start >= 33 * 5 * 4 for start, end in zip(nests.offsets, ends, strict=True))


PRODUCTS = {
    "whole_tiles": kernel(
        lambda x, w: kernels.conv2d(x, w, (1, 1), (1, 1), (1, 1), 1), (2, 16, 16, 32), (4, 3, 3, 32, 16)
    ),
    "left_over_rows_and_columns": kernel(
        lambda x, w: kernels.conv2d(x, w, (2, 2), (3, 3), (1, 1), 1), (1, 15, 13, 3), (3, 7, 7, 3, 8)
    ),
    "dilated": kernel(lambda x, w: kernels.conv2d(x, w, (1, 1), (2, 2), (2, 2), 1), (1, 9, 9, 8), (1, 3, 3, 8, 16)),
    "turned": kernel(lambda a, b: kernels.matmul(a, b, False, True), (7, 200), (130, 200)),
    "both_turned": kernel(lambda a, b: kernels.matmul(a, b, True, True), (100, 33), (65, 100)),
    "input_gradient": kernel(
        lambda gy, w: kernels.conv2d_input_grad(gy, w, (14, 14), (2, 2), (1, 1), (1, 1), 1),
        (2, 7, 7, 32),
        (2, 3, 3, 16, 16),
    ),
    "input_gradient_beside_padding": kernel(  # 4 phases of 12 channels: what pads 48 columns to 64 has no phase
        lambda gy, w: kernels.conv2d_input_grad(gy, w, (14, 14), (2, 2), (1, 1), (1, 1), 1),
        (2, 7, 7, 32),
        (2, 3, 3, 12, 16),
    ),
    "input_gradient_of_separate_taps": kernel(
        lambda gy, w: kernels.conv2d_input_grad(gy, w, (14, 14), (2, 2), (0, 0), (1, 1), 1),
        (2, 7, 7, 32),
        (2, 2, 2, 3, 16),
    ),
    "weight_gradient": kernel(
        lambda gy, x: kernels.conv2d_weight_grad(gy, x, (3, 3), (1, 1), (1, 1), (1, 1), 1, 16),
        (2, 8, 8, 32),
        (2, 8, 8, 12),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("target", fast([NANO, ORIN], [NANO]), ids=lambda target: target.name)
def test_products(tmp_path: Path, target: object) -> None:
    """In tiles of shared memory, chosen for one multiprocessor and for sixteen."""
    emulated = Emulated(PRODUCTS, target, tmp_path)  # type: ignore[arg-type]
    assert set(emulated.rules.values()) == {"matmul"}
    assert emulated.source.count("__shared__") == 2 * len(PRODUCTS)
    compare(PRODUCTS, emulated)


@pytest.mark.slow
@pytest.mark.parametrize("barrier", [0, 1])
def test_a_removed_barrier_is_caught(tmp_path: Path, barrier: int) -> None:
    function = PRODUCTS["whole_tiles"]
    emulated = Emulated({"conv": function}, NANO, tmp_path)
    parts = emulated.source.split("__syncthreads();")
    assert len(parts) == 3
    careless = "".join(text if at == barrier else text + "__syncthreads();" for at, text in enumerate(parts[:-1]))
    emulated.library = build(careless + parts[-1], tmp_path / "careless.so", race_check=True)
    with pytest.raises(EmulatorError, match="race"):
        emulated.run("conv", random_inputs(function))


def test_rows_in_order() -> None:
    """A function that comes with its loops has a block of one thread for each turn of the parallel one."""
    rule, scheduled = choose_schedule(kernels.put(5, 7, 3, "float32", True), NANO)
    assert rule == "none"
    _, launches = make_source({"put": (scheduled, True)}, NANO)
    (launch,) = launches["put"]
    assert (launch.grid, launch.block) == ((5, 1, 1), (1, 1, 1))


@pytest.mark.slow
def test_put_adds_equal_indices_in_order(tmp_path: Path) -> None:
    function = kernels.put(3, 4, 6, "float32", True)
    emulated = Emulated({"put": function}, NANO, tmp_path)
    base, values = np.zeros((3, 4), "float32"), np.arange(18, dtype="float32").reshape(3, 6)
    index = np.array([[0, 0, 1, 3, 3, 3]] * 3)
    expected = base.copy()
    for row in range(3):
        np.add.at(expected[row], index[row], values[row])
    np.testing.assert_array_equal(emulated.run("put", [base, index, values])[-1], expected)


def test_tiles_fit_what_there_is() -> None:
    assert choose_tile(4096, 512, 1) == TILES[0]
    assert choose_tile(4096, 24, 1).columns == 32
    assert choose_tile(2, 1000, 1).rows == 4
    many = choose_tile(128, 128, 16)  # four tiles of 64 would leave most multiprocessors idle
    assert -(-128 // many.rows) * -(-128 // many.columns) >= 32


def test_shared_memory_ends_with_its_launch() -> None:
    scheduled = choose_schedule(PRODUCTS["whole_tiles"], NANO)[1]
    root = scheduled.body.block
    twice = tirx.SeqStmt([root.body, root.body])
    block = type(root)([], [], [], "root", twice, alloc_buffers=root.alloc_buffers)
    function = tirx.PrimFunc(scheduled.params, type(scheduled.body)([], True, block), attrs=scheduled.attrs)
    with pytest.raises(ContractError, match=r"' \((shared|local) memory\) lives through two launches"):
        cut(function)


def test_more_columns_than_blocks_along_y() -> None:
    """A weight times a map of six million pixels: 93750 blocks, where y takes 65535."""
    function = kernel(lambda w, x: kernels.matmul(w, x, False, False), (8, 16), (16, 6_000_000))
    rule, scheduled = choose_schedule(function, NANO)
    assert rule == "matmul"
    _, launches = make_source({"wide": (scheduled, True)}, NANO)
    assert [launch.grid for launch in launches["wide"]] == [(93750, 1, 1)]


def test_a_grid_that_no_gpu_takes_is_refused() -> None:
    """Three thousand million points counted in 32 bits."""
    function = kernel(lambda x: te.compute(x.shape, lambda i, j: x[i, j] + 1.0), (70_000, 40_000))
    scheduled = choose_schedule(function, NANO)[1]
    with pytest.raises(ContractError, match=r"'huge_0_kernel': no GPU takes \(-\d+, 1, 1\) blocks of \(256, 1, 1\)"):
        make_source({"huge": (scheduled, True)}, NANO)


def test_reductions_that_threads_cannot_share(tmp_path: Path) -> None:
    """TVM knows how several threads add or compare, not how they look for any that is true."""
    flags = te.placeholder((3, 100), "bool", "flags")
    k = te.reduce_axis((0, 100))
    any_of = te.comm_reducer(lambda a, b: tirx.any(a, b), lambda dtype: tirx.const(0, dtype))
    function = te.create_prim_func([flags, te.compute((3,), lambda i: any_of(flags[i, k], axis=[k]))])
    emulated = Emulated({"any": function}, NANO, tmp_path)
    given = np.zeros((3, 100), "bool")
    given[1, 99] = True
    np.testing.assert_array_equal(emulated.run("any", [given])[-1], [False, True, False])


@pytest.mark.slow
@pytest.mark.parametrize("length", [100, 1000])
def test_whole_warps_sum_together(tmp_path: Path, length: int) -> None:
    """From sm_70 on lanes of a warp go their own ways after a branch; a shuffle must name those it waits for."""
    k = te.reduce_axis((0, length))
    function = kernel(lambda x: te.compute((3,), lambda i: te.sum(x[i, k], axis=[k])), (3, length))
    emulated = Emulated({"sum": function}, ORIN, tmp_path)
    assert "__shfl_down_sync(" in emulated.source
    assert "__activemask" not in emulated.source
    assert all(each.block[0] % 32 == 0 for each in emulated.launches["sum"])
    compare({"sum": function}, emulated)


ONE_ROW_OR_COLUMN = {
    "one_pixel": kernel(
        lambda x, w: kernels.conv2d(x, w, (1, 1), (0, 0), (1, 1), 1), (1, 1, 1, 64), (64, 1, 1, 64, 16)
    ),
    "one_channel": kernel(
        lambda gy, x: kernels.conv2d_weight_grad(gy, x, (1, 1), (1, 1), (0, 0), (1, 1), 1, 1),
        (2, 18, 18, 1),
        (2, 18, 18, 40),
    ),
}


@pytest.mark.slow
def test_one_row_or_column(tmp_path: Path) -> None:
    """Nothing is read twice; in a tile, all threads of its padding would store to the same place."""
    emulated = Emulated(ONE_ROW_OR_COLUMN, NANO, tmp_path)
    assert set(emulated.rules.values()) == {"rest"}
    compare(ONE_ROW_OR_COLUMN, emulated)


@pytest.mark.slow
def test_the_last_rule_takes_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread, for what no template could bind: here a product, and a sum with its epilogue."""
    monkeypatch.setattr(schedules, "GPU_RULES", schedules.GPU_RULES[-1:])
    mean = kernel(lambda x: kernels.patch_mean(x, (2, 4, 0, 0, 8), (2, 4, 0, 0, 8)), (1, 8, 8, 3))
    functions = {"product": kernel(lambda a, b: kernels.matmul(a, b, False, False), (5, 9), (9, 4)), "mean": mean}
    emulated = Emulated(functions, NANO, tmp_path)
    assert set(emulated.rules.values()) == {"single"}
    assert {each.block for launches in emulated.launches.values() for each in launches} == {(1, 1, 1)}
    compare(functions, emulated)


TAILS = ("left_over_rows_and_columns", "both_turned", "input_gradient_beside_padding", "weight_gradient")
OTHER_TILES = [
    {"tile": (128, 64, 8, 4), "depth": 16},
    {"tile": (64, 64, 8, 8), "depth": 8},
    {"tile": (32, 32, 2, 2), "depth": 32},
    {"tile": (16, 16, 1, 2), "depth": 8, "threads 0": 64},
    {"tile": (8, 32, 1, 2), "depth": 16, "threads 0": 512},
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "decisions",
    often(OTHER_TILES, [OTHER_TILES[0], OTHER_TILES[3]]),
    ids=lambda decisions: "x".join(map(str, decisions["tile"])),
)
def test_a_tile_that_is_asked_for_computes_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decisions: Decisions
) -> None:
    """Large and small, deep and flat, all with rows, columns or terms left over; some beside what they pad."""
    taken = []

    def as_decided(function: tirx.PrimFunc, target: Target) -> tuple[str, tirx.PrimFunc]:
        drawn = draw(function, target, Candidate("matmul", decisions))
        taken.append(drawn.candidate.decisions["tile"])
        return "matmul", drawn.function

    monkeypatch.setattr(matmul, "_is_filled", lambda *_: True)  # however few rows there are
    functions = {name: PRODUCTS[name] for name in TAILS}
    emulated = Emulated(functions, NANO, tmp_path, as_decided)
    assert taken == [decisions["tile"]] * len(TAILS)
    compare(functions, emulated)


def sum_of_rows(x: te.Tensor) -> te.Tensor:
    k = te.reduce_axis((0, x.shape[1]))
    return te.compute((x.shape[0],), lambda i: te.sum(x[i, k], axis=[k]))


SUMS = {  # a thread each; together; together, beside those of the neighbours
    "alone": kernel(lambda x: kernels.patch_mean(x, (2, 4, 0, 0, 8), (2, 4, 0, 0, 8)), (2, 32, 32, 96)),
    "together": kernel(sum_of_rows, (3, 1100)),
    "side_by_side": kernel(lambda x: kernels.adaptive_avg_pool2d(x, (1, 1)), (2, 28, 28, 24)),
}


@pytest.mark.slow
@pytest.mark.parametrize("at", [0, -1])
def test_any_number_of_threads_sums_the_same(tmp_path: Path, at: int) -> None:
    def at_an_end(function: tirx.PrimFunc, target: Target) -> tuple[str, tirx.PrimFunc]:
        (usual,) = list_templates(function, target)
        ends = {name: options[at] for name, options in usual.options.items()}
        assert ends != usual.candidate.decisions
        return "rest", draw(function, target, Candidate("rest", ends)).function

    compare(SUMS, Emulated(SUMS, NANO, tmp_path, at_an_end))


@pytest.mark.slow
def test_what_a_template_proposes_is_what_the_compiler_takes() -> None:
    for function in (*PRODUCTS.values(), *SUMS.values(), *ONE_ROW_OR_COLUMN.values()):
        rule, scheduled = choose_schedule(function, ORIN)
        drawn = draw(function, ORIN, Candidate(rule))
        assert_structural_equal(drawn.function, scheduled)
        again = draw(function, ORIN, drawn.candidate)
        assert_structural_equal(again.function, scheduled)
        assert all(drawn.candidate.decisions[name] in options for name, options in drawn.options.items())


def test_only_tiles_that_a_gpu_takes_are_offered() -> None:
    gpu = NANO.gpu
    assert gpu is not None
    assert matmul.fits(Tile(64, 64, 4, 4), gpu)
    assert not matmul.fits(Tile(64, 64, 1, 1), gpu)  # 4096 threads
    assert not matmul.fits(Tile(16, 16, 4, 4), gpu)  # half a warp
    assert not matmul.fits(Tile(128, 256, 8, 16), gpu)  # 128 accumulators
    assert not matmul.fits(Tile(128, 128, 8, 8, 64), gpu)  # 64 KiB of shared memory
    offered = draw(PRODUCTS["dilated"], NANO, Candidate("matmul")).options["tile"]
    assert len(offered) > 3
    assert all(columns <= 32 for _, columns, _, _ in offered)  # of 16
