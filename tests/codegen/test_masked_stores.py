"""Kernels that LLVM would let write past their output: one lane of narrowed integers, stored as wide as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tvm
from tvm import te, tirx

from gfcompile.codegen import build, kernels
from gfcompile.codegen.schedules import schedule
from gfcompile.targets import find_target
from gfcompile.tuning.local import LocalRunner
from gfcompile.tuning.trial import build_trial

NATIVE, AVX512 = find_target("native"), find_target("x86-64-v4")


def pool(dtype: str) -> tirx.PrimFunc:
    """Rows of ten, the first of which is peeled off: LLVM makes the other nine a vector of eight, and a lane."""
    x = te.placeholder((2, 10, 20, 1), name="x")
    made = kernels.max_pool2d_with_indices(x, (3, 3), (2, 2), (1, 1), (1, 1), (5, 10), dtype)
    return te.create_prim_func([x, *made])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["uint8", "int16"])
def test_nothing_is_written_past_the_taps(dtype: str, tmp_path: Path) -> None:
    """A trial looks at the bytes around every operand. Only code for AVX-512 was ever wrong."""
    function = pool(dtype)
    candidate = schedule(function, NATIVE)
    trial = build_trial(function, candidate, candidate, NATIVE, tmp_path)
    assert LocalRunner(NATIVE, 1, 1e-5).run(trial, 60).error == 0


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The LLVM IR of each time that something is compiled."""
    made: list[str] = []
    compile_it = tirx.build

    def record(*arguments: Any, **options: Any) -> tvm.runtime.Module:
        module = compile_it(*arguments, **options)
        made.append(module.inspect_source("ll"))
        return module

    monkeypatch.setattr(tirx, "build", record)
    return made


def compile_for_avx512(scheduled: tirx.PrimFunc, path: Path) -> bytes:
    path.write_bytes(build.compile_kernel(scheduled, "kernel", tvm.target.Target(AVX512.tvm), noalias=True))
    return path.read_bytes()


def test_on_any_machine_such_a_kernel_is_compiled_again(compiled: list[str], tmp_path: Path) -> None:
    compile_for_avx512(schedule(pool("uint8"), AVX512), tmp_path / "pool.o")
    first, second = compiled
    assert build.stores_one_lane(first)
    assert "masked.store" not in second


@pytest.mark.slow
def test_other_kernels_are_compiled_once_and_as_before(compiled: list[str], tmp_path: Path) -> None:
    """LLVM's options belong to the process: those of the kernel in between must end with it."""
    x = te.placeholder((64,), name="x")
    twice = te.create_prim_func([x, te.compute(x.shape, lambda i: x[i] + x[i])])
    before = compile_for_avx512(twice, tmp_path / "twice.o")
    (ir,) = compiled
    assert "wide.load" in ir  # LLVM made vectors of a loop that has none
    compile_for_avx512(schedule(pool("uint8"), AVX512), tmp_path / "pool.o")
    assert compile_for_avx512(twice, tmp_path / "twice.o") == before


@pytest.mark.parametrize(
    ("kind", "mask", "wrong"),
    [
        ("4i8", "<4 x i1> <i1 true, i1 false, i1 false, i1 false>", True),
        ("4i16", "<4 x i1> <i1 false, i1 false, i1 false, i1 true>", True),
        ("4i32", "<4 x i1> <i1 false, i1 true, i1 false, i1 false>", True),
        ("4i8", "<4 x i1> <i1 true, i1 true, i1 false, i1 false>", False),
        ("4i8", "<4 x i1> %mask", False),
        ("4f32", "<4 x i1> <i1 true, i1 false, i1 false, i1 false>", False),
    ],
)
def test_what_is_wrong_is_one_lane_of_integers(kind: str, mask: str, wrong: bool) -> None:
    value = f"<4 x {kind[1:].replace('f32', 'float')}> %value"
    line = f"  tail call void @llvm.masked.store.v{kind}.p0({value}, ptr align 1 %to, {mask}), !dbg !17, !tbaa !47\n"
    assert build.stores_one_lane(f"entry:\n{line}  ret i32 0\n") == wrong
