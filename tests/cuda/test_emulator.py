"""The emulator runs right kernels to the right result, and says what is wrong with wrong ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.cuda.emulator import EmulatorError, build, launch
from tests.cuda.emulator.source import find_kernels

SOURCE = Path(__file__).with_name("kernels.cu").read_text()
RANDOM = np.random.default_rng(0)

Compile = Callable[..., Path]


@pytest.fixture(scope="session")
def compile_kernels(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """A library of `source`, built once for each text and kind."""
    folder, known = tmp_path_factory.mktemp("kernels"), {}

    def compile_once(source: str = SOURCE, race_check: bool = True, **more: dict[str, list[int]]) -> Path:
        key = (source, race_check, str(more))
        if key not in known:
            known[key] = build(source, folder / f"{len(known)}.so", race_check, **more)
        return known[key]

    return compile_once


def only(name: str, *edits: tuple[str, str]) -> str:
    """One kernel of the file, edited: each edit must hit exactly once."""
    found = next(kernel for kernel in find_kernels(SOURCE) if kernel.name == name)
    begin, end = SOURCE.rindex("extern", 0, found.body[0]), found.body[1] + 1
    text = SOURCE[begin:end]
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return "typedef unsigned int uint;\n" + text


def floats(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(np.float32)


def run_matmul(library: Path, grid: tuple[int, ...] = (2, 2)) -> tuple[np.ndarray, np.ndarray]:
    a, b, c = floats(32, 64), floats(64, 32), np.zeros((32, 32), np.float32)
    launch(library, "matmul", grid, (16, 16), [a, b, c])
    return c, a @ b


@pytest.mark.slow
@pytest.mark.parametrize("race_check", [False, True])
def test_right_kernels_give_the_right_numbers(compile_kernels: Compile, race_check: bool) -> None:
    library = compile_kernels(race_check=race_check)
    c, expected = run_matmul(library)
    np.testing.assert_allclose(c, expected, atol=1e-5)

    out, x, y = np.zeros(256, np.float32), floats(256), floats(256)
    launch(library, "scale_add", (4,), (64,), [out, x, y])
    np.testing.assert_array_equal(out, 2 * x + y)

    rows, sums = floats(5, 64), np.zeros(5, np.float32)
    launch(library, "row_sum", (5,), (64,), [rows, sums])
    np.testing.assert_allclose(sums, rows.sum(1), atol=1e-5)

    counts, octets = np.zeros(32, np.uint8), RANDOM.integers(0, 3, (32, 4)).astype(np.uint8)
    pairs = np.zeros((32, 2), np.float32)
    launch(library, "bytes", (1,), (32,), [counts, octets, pairs])
    np.testing.assert_array_equal(counts, (octets != 0).sum(1))
    np.testing.assert_allclose(pairs[:, 1], 1 / np.sqrt(np.maximum(octets[:, 3], 1.0)), rtol=1e-6)
    np.testing.assert_array_equal(pairs[:, 0], octets[:, 0])

    line, shifted = floats(32), np.zeros(32, np.float32)
    launch(library, "neighbours", (1,), (32,), [line, shifted])
    np.testing.assert_array_equal(shifted, np.roll(line, -1))


@pytest.mark.slow
def test_what_tvm_emits(compile_kernels: Compile) -> None:
    """A matrix product through shared memory and a sum of rows, scheduled and written by TVM."""
    import tvm
    from tvm import te, tirx
    from tvm.s_tir import dlight

    a, b = te.placeholder((64, 64), name="a"), te.placeholder((64, 64), name="b")
    k = te.reduce_axis((0, 64), "k")
    product = te.compute((64, 64), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="product")
    smooth = te.compute((64, 64), lambda i, j: te.exp(te.max(product[i, j], 0.0)), name="smooth")
    row = te.compute((64,), lambda i: te.sum(a[i, k], axis=k), name="row")
    functions = {
        "product": te.create_prim_func([a, b, smooth]).with_attr("global_symbol", "product"),
        "row": te.create_prim_func([a, row]).with_attr("global_symbol", "row"),
    }
    device = {"kind": "cuda", "arch": "sm_53", "max_threads_per_block": 1024, "max_shared_memory_per_block": 49152}
    target = tvm.target.Target({**device, "thread_warp_size": 32}, host={"kind": "llvm"})
    with target:
        module = dlight.ApplyDefaultSchedule(dlight.gpu.Matmul(), dlight.gpu.Reduction())(tvm.IRModule(functions))
    built = tirx.build(module, target=target)
    source = next(part for part in built.imports if part.kind == "cuda").inspect_source()
    assert "__shared__" in source
    assert "__syncthreads" in source
    assert "__shfl_down_sync" in source

    library = compile_kernels(source)
    blocks = {kernel.name: kernel.most_threads for kernel in find_kernels(source)}
    x, y, out, sums = floats(64, 64), floats(64, 64) / 8, np.zeros((64, 64), np.float32), np.zeros(64, np.float32)
    launch(library, "product_kernel", (2,), (8, blocks["product_kernel"] // 8), [x, y, out])
    np.testing.assert_allclose(out, np.exp(np.maximum(x @ y, 0)), rtol=1e-5)
    launch(library, "row_kernel", (64,), (blocks["row_kernel"],), [x, sums])
    np.testing.assert_allclose(sums, x.sum(1), atol=1e-5)

    begin, end = next(kernel.body for kernel in find_kernels(source) if kernel.name == "product_kernel")
    barriers = [match.start() for match in re.finditer(r"__syncthreads\(\);", source) if begin < match.start() < end]
    assert barriers
    for at in barriers:
        broken = compile_kernels(source[:at] + source[at + len("__syncthreads();") :])
        with pytest.raises(
            EmulatorError, match=r"kernel 'product_kernel', block .*: race: .*: shared array '\w+' \+\d"
        ):
            launch(broken, "product_kernel", (2,), (8, blocks["product_kernel"] // 8), [x, y, out])


def test_shuffles_stay_in_their_groups(compile_kernels: Compile) -> None:
    out = np.zeros((5, 32), np.int32)
    launch(compile_kernels(), "shuffles", (1,), (32,), [out])
    lane = np.arange(32)
    group, place = lane // 8 * 8, lane % 8
    np.testing.assert_array_equal(out[0], group + 3)
    np.testing.assert_array_equal(out[1], np.where(place < 2, lane, lane - 2))
    np.testing.assert_array_equal(out[2], np.where(place > 5, lane, lane + 2))
    np.testing.assert_array_equal(out[3], lane ^ 1)
    np.testing.assert_array_equal(out[4].view(np.uint32), np.where(lane < 5, 0x1F, 0xFFFFFFE0))


@pytest.mark.slow
@pytest.mark.parametrize("which", [0, 1])
def test_a_removed_barrier_is_a_race(compile_kernels: Compile, which: int) -> None:
    parts = only("matmul").split("__syncthreads();")
    assert len(parts) == 3
    source = "__syncthreads();".join(parts[: which + 1]) + ";" + "__syncthreads();".join(parts[which + 1 :])
    with pytest.raises(EmulatorError) as caught:
        run_matmul(compile_kernels(source))
    access, place = [("reads what thread (0,0,0) wrote", 0), ("writes what thread (0,0,0) read", 4)][which]
    assert str(caught.value) == (
        f"kernel 'matmul', block (0,0,0): race: thread (1,0,0) {access}, with no barrier between them: "
        f"shared array 'a_shared' +{place} bytes (it has 1024)"
    )


@pytest.mark.slow
def test_without_its_syncwarp_a_warp_races(compile_kernels: Compile) -> None:
    source = only("neighbours", ("__syncwarp();", ";"))
    with pytest.raises(EmulatorError, match=r"thread \(\d+,0,0\) (reads|writes) what thread .* shared array 'line'"):
        launch(compile_kernels(source), "neighbours", (1,), (32,), [floats(32), floats(32)])


def test_a_small_grid_leaves_results_out(compile_kernels: Compile) -> None:
    c, expected = run_matmul(compile_kernels(), (2, 1))
    assert np.abs(c - expected).max() > 0.1


@pytest.mark.parametrize("race_check", [False, True])
def test_a_large_grid_leaves_the_arrays(compile_kernels: Compile, race_check: bool) -> None:
    arrays = [np.zeros(256, np.float32), floats(256), floats(256)]
    with pytest.raises(
        EmulatorError, match=r"kernel 'scale_add', block .*: thread \(\d+,0,0\) .*argument 1 \('x'\) \+\d"
    ):
        launch(compile_kernels(race_check=race_check), "scale_add", (64,), (64,), arrays)


def test_the_byte_behind_an_array_is_out_of_bounds(compile_kernels: Compile) -> None:
    arrays = [np.zeros(256, np.float32), floats(255), floats(256)]
    expected = r"block \(3,0,0\): thread \(63,0,0\) reads 4 bytes out of bounds: argument 1 \('x'\) \+1020 bytes"
    with pytest.raises(EmulatorError, match=expected):
        launch(compile_kernels(), "scale_add", (4,), (64,), arrays)


@pytest.mark.slow
def test_known_extents_are_kept_within_one_allocation(compile_kernels: Compile) -> None:
    arrays = [np.zeros(256, np.float32), floats(256), floats(256)]
    source = only("scale_add")
    launch(compile_kernels(source, extents={"scale_add": [1024, 1024, 1024]}), "scale_add", (4,), (64,), arrays)
    expected = r"block \(3,0,0\): thread \(62,0,0\) writes 4 bytes out of bounds: argument 0 \('out'\) \+1016 bytes"
    short = compile_kernels(source, extents={"scale_add": [1016, 1024, 1024]})
    with pytest.raises(EmulatorError, match=expected):
        launch(short, "scale_add", (4,), (64,), arrays)


@pytest.mark.slow
def test_an_index_past_a_shared_array_is_out_of_bounds(compile_kernels: Compile) -> None:
    source = only("neighbours", ("+ 1) % 32)", "+ 1))"))
    expected = r"thread \(31,0,0\) reads 4 bytes out of bounds: shared array 'line' \+128 bytes \(it has 128\)"
    with pytest.raises(EmulatorError, match=expected):
        launch(compile_kernels(source), "neighbours", (1,), (32,), [floats(32), floats(32)])


def test_swapped_arguments_show(compile_kernels: Compile) -> None:
    rows, sums = floats(5, 64), np.zeros(5, np.float32)
    with pytest.raises(EmulatorError, match=r"out of bounds: argument 0 \('x'\) \+20 bytes"):
        launch(compile_kernels(), "row_sum", (5,), (64,), [sums, rows])
    a, b, c = floats(32, 64), floats(64, 32), np.zeros((32, 32), np.float32)
    launch(compile_kernels(), "matmul", (2, 2), (16, 16), [b, a, c])
    assert np.abs(c - a @ b).max() > 0.1


@pytest.mark.slow
def test_a_divergent_barrier_is_an_error(compile_kernels: Compile) -> None:
    source = only("row_sum", ("  __syncthreads();", "  if (threadIdx.x != 7) __syncthreads();"))
    expected = (
        r"kernel 'row_sum', block \(0,0,0\): divergent barrier: thread \(0,0,0\) waits at __syncthreads, line \d+, "
        r"but thread \(7,0,0\) has exited"
    )
    for race_check in (False, True):
        with pytest.raises(EmulatorError, match=expected):
            launch(compile_kernels(source, race_check), "row_sum", (5,), (64,), [floats(5, 64), floats(5)])


@pytest.mark.slow
def test_two_places_are_not_one_barrier(compile_kernels: Compile) -> None:
    both = "  if (threadIdx.x < 32)\n__syncthreads();\n else\n__syncthreads();"
    source = only("row_sum", ("  __syncthreads();", both))
    expected = (
        r"thread \(\d+,0,0\) waits at __syncthreads, line 25, but thread \(0,0,0\) waits at __syncthreads, line 23"
    )
    with pytest.raises(EmulatorError, match=expected):
        launch(compile_kernels(source), "row_sum", (5,), (64,), [floats(5, 64), floats(5)])


@pytest.mark.slow
def test_a_shuffle_waits_for_its_lanes(compile_kernels: Compile) -> None:
    source = only("shuffles", ("  out[me] =", "  if (me == 9) return;\n  out[me] ="))
    expected = r"thread \(0,0,0\) waits at a shuffle, line \d+, but thread \(9,0,0\) has exited"
    with pytest.raises(EmulatorError, match=expected):
        launch(compile_kernels(source), "shuffles", (1,), (32,), [np.zeros(160, np.int32)])
    source = only("shuffles", ("__shfl_sync(0xffffffff", "__shfl_sync(0xfffffffe"))
    with pytest.raises(
        EmulatorError, match=r"thread \(0,0,0\) waits at a shuffle.* mask 0xfffffffe, which leaves it out"
    ):
        launch(compile_kernels(source), "shuffles", (1,), (32,), [np.zeros(160, np.int32)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "conflict"),
    [
        ("sums[0]", r"writes what thread \(0,0,0\) of block \(0,0,0\) wrote"),
        ("x[((((int)blockIdx.x) * 64) + 64)]", r"reads what thread \(0,0,0\) of block \(0,0,0\) wrote"),
        ("(blockIdx.x == 1 ? x + 5 : sums)[0]", r"writes what thread \(5,0,0\) of block \(0,0,0\) read"),
    ],
)
def test_blocks_do_not_wait_for_each_other(compile_kernels: Compile, target: str, conflict: str) -> None:
    source = only("row_sum", ("sums[((int)blockIdx.x)]", target))
    with pytest.raises(EmulatorError, match=rf"block \(1,0,0\): race: thread .* {conflict}"):
        launch(compile_kernels(source), "row_sum", (5,), (64,), [floats(6, 64), floats(5)])


@pytest.mark.slow
def test_neighbouring_bytes_are_no_race_but_equal_ones_are(compile_kernels: Compile) -> None:
    arrays = [np.zeros(32, np.uint8), np.zeros(128, np.uint8), floats(64)]
    source = only("bytes", ("counts[((int)threadIdx.x)]", "counts[(((int)threadIdx.x) >> 1)]"))
    expected = r"thread \(1,0,0\) writes what thread \(0,0,0\) wrote, .*: argument 0 \('counts'\) \+0 bytes"
    with pytest.raises(EmulatorError, match=expected):
        launch(compile_kernels(source), "bytes", (1,), (32,), arrays)


@pytest.mark.slow
def test_vectors_lie_at_multiples_of_their_size(compile_kernels: Compile) -> None:
    source = only("bytes", ("(pairs + (((int)threadIdx.x) * 2))", "(pairs + (((int)threadIdx.x) + 1))"))
    arrays = [np.zeros(32, np.uint8), np.zeros(128, np.uint8), floats(64)]
    expected = r"thread \(0,0,0\) accesses a vector of 8 bytes at no multiple of 8: argument 2 \('pairs'\) \+4 bytes"
    for race_check in (False, True):
        with pytest.raises(EmulatorError, match=expected):
            launch(compile_kernels(source, race_check), "bytes", (1,), (32,), arrays)


@pytest.mark.slow
def test_shared_memory_starts_undefined(compile_kernels: Compile) -> None:
    source = only("neighbours", ("line[((int)threadIdx.x)] = x[((int)threadIdx.x)];", ";"))
    out = floats(32)
    launch(compile_kernels(source), "neighbours", (1,), (32,), [floats(32), out])
    assert np.isnan(out).all()


@pytest.mark.parametrize(
    ("grid", "block", "expected"),
    [
        ((4,), (128,), "kernel 'scale_add': a block of 128; at most 64, at least 1"),
        ((4,), (0,), "kernel 'scale_add': a block of 0; at most 64, at least 1"),
        ((4, 70000), (64,), "kernel 'scale_add': a grid with y of 70000; at most 65535, at least 1"),
        ((0,), (64,), "kernel 'scale_add': a grid with x of 0; at most 2147483647, at least 1"),
    ],
)
def test_a_launch_no_device_takes(
    compile_kernels: Compile, grid: tuple[int, ...], block: tuple[int, ...], expected: str
) -> None:
    arrays = [np.zeros(256, np.float32), floats(256), floats(256)]
    with pytest.raises(EmulatorError) as caught:
        launch(compile_kernels(), "scale_add", grid, block, arrays)
    assert str(caught.value) == expected


def test_more_shared_memory_than_a_block_has() -> None:
    source = only("neighbours", ("float line[32]", "float line[16384]"))
    with pytest.raises(RuntimeError, match="neighbours: more than 48 KB of shared memory"):
        build(source, Path("never.so"))


def test_dynamic_shared_memory_is_refused() -> None:
    source = only("neighbours", ("__shared__ float line[32];", "extern __shared__ float line[];"))
    with pytest.raises(ValueError, match="kernel 'neighbours': shared memory that is no array of a fixed size"):
        build(source, Path("never.so"))


def test_fast_mathematics_is_refused(tmp_path: Path) -> None:
    """Exact functions in their place would hide what a GPU makes of a negative base."""
    source = 'extern "C" __global__ void cube(float* x) { x[threadIdx.x] = __powf(x[threadIdx.x], 3.0f); }'
    with pytest.raises(RuntimeError, match='poisoned "__powf"'):
        build(source, tmp_path / "cube.so")
