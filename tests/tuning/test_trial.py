"""A trial compares a candidate with the untuned kernel, output by output, and times both."""

from __future__ import annotations

import ctypes
import json
import math
import shutil
import subprocess
from pathlib import Path

import pytest
from tvm import te, tirx

from gfcompile.codegen import kernels
from gfcompile.codegen.schedules import Workspace, find_workspace, schedule
from gfcompile.targets import Target, find_target
from gfcompile.tuning.local import LocalRunner
from gfcompile.tuning.trial import (
    Measurement,
    TrialFailed,
    TrialKernel,
    build_trial,
    compile_for_trial,
    link_trial,
    read_measurement,
)
from tests.missing import skip_for_want
from tests.tuning.kernels import convolution, kernel, scaled

NATIVE = find_target("native")
TURNS = 3


def measure(function: tirx.PrimFunc, candidate: tirx.PrimFunc, folder: Path, target: Target = NATIVE) -> Measurement:
    """Of a candidate that is scheduled as it is given, or not at all."""
    built = build_trial(function, candidate, schedule(function, target), target, folder)
    return LocalRunner(target, TURNS, 1e-4).run(built, 60)


def of_c(source: str, folder: Path) -> TrialKernel:
    """A kernel written in C, as no schedule would have it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kernel.c").write_text(source)
    command = ["cc", "-O1", "-c", str(folder / "kernel.c"), "-o", str(folder / "candidate.o")]
    subprocess.run(command, check=True)
    return TrialKernel(folder / "candidate.o", Workspace(0, 0))


def measure_c(function: tirx.PrimFunc, body: str, folder: Path) -> Measurement:
    """Of `int kernel(void *a, void *b)` with that body, against the function."""
    source = f"#include <stdint.h>\nint gf_trial_candidate_kernel(void *a, void *b) {{ {body} }}\n"
    candidate = of_c(source, folder)
    reference = compile_for_trial(schedule(function, NATIVE), "reference", NATIVE, folder)
    built = link_trial(function, candidate, reference, NATIVE, folder, "program")
    return LocalRunner(NATIVE, TURNS, 1e-4).run(built, 60)


def test_a_kernel_equals_itself(tmp_path: Path) -> None:
    found = measure(scaled(2.0), schedule(scaled(2.0), NATIVE), tmp_path)
    assert found.error == 0
    assert len(found.seconds) == len(found.reference) == TURNS
    assert all(seconds > 0 for seconds in (*found.seconds, *found.reference))


def test_a_schedule_is_compared_with_plain_loops(tmp_path: Path) -> None:
    """Sums in another order: a rounding, and no more."""
    function = kernel(lambda x: kernels.adaptive_avg_pool2d(x, (1, 1)), (2, 28, 28, 16))
    assert 0 <= measure(function, function, tmp_path).error < 1e-5


@pytest.mark.slow
def test_the_error_is_relative_to_the_largest_value(tmp_path: Path) -> None:
    found = measure(scaled(2.0), schedule(scaled(2.5), NATIVE), tmp_path)
    assert found.error == pytest.approx(0.25, rel=1e-5)


@pytest.mark.slow
def test_workspaces_are_there(tmp_path: Path) -> None:
    """Outside parallel loops and inside them: the candidate's are its own, not the reference's."""
    function = convolution()
    workspace = find_workspace(schedule(function, NATIVE))
    assert workspace.shared > 0
    assert workspace.each > 0
    built = build_trial(function, schedule(function, NATIVE), function, NATIVE, tmp_path)
    assert LocalRunner(NATIVE, TURNS, 1e-4).run(built, 60).error < 1e-5


def test_a_workspace_that_was_not_announced_is_a_failure(tmp_path: Path) -> None:
    function = convolution()
    candidate = compile_for_trial(schedule(function, NATIVE), "candidate", NATIVE, tmp_path)
    reference = compile_for_trial(function, "reference", NATIVE, tmp_path)
    none = TrialKernel(candidate.object, Workspace(0, 0))
    built = link_trial(function, none, reference, NATIVE, tmp_path, "program")
    with pytest.raises(TrialFailed, match=r"^the candidate failed with code -1: workspace exhausted"):
        LocalRunner(NATIVE, TURNS, 1e-4).run(built, 60)


BYTES = """
  const uint8_t *x = a; uint8_t *y = b;
  for (int i = 0; i < 64; ++i) y[i] = x[i] + 3;
  return 0;
"""


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "int64"])
def test_operands_that_are_no_floats(dtype: str, tmp_path: Path) -> None:
    """An integer may be an index: a row is taken by each, which must exist."""

    def take(x: te.Tensor, at: te.Tensor) -> te.Tensor:
        return te.compute((8,), lambda i: x[at[i].astype("int32")], name="take")

    function = kernel(take, (2,), (8,), dtypes=("float32", dtype))
    assert measure(function, schedule(function, NATIVE), tmp_path).error == 0


@pytest.mark.slow
def test_bytes_are_compared_as_numbers(tmp_path: Path) -> None:
    """The inputs hold zeros and ones, so that the reference's largest value is 4."""
    function = kernel(lambda x: te.compute(x.shape, lambda i: x[i] + tirx.const(3, "uint8")), (64,), dtypes=("uint8",))
    assert measure_c(function, BYTES, tmp_path / "right").error == 0
    assert measure_c(function, BYTES.replace("+ 3", "* 3"), tmp_path / "wrong").error == pytest.approx(3 / 4)


@pytest.mark.slow
def test_every_output_is_compared(tmp_path: Path) -> None:
    def two(second: float) -> tirx.PrimFunc:
        def compute(x: te.Tensor) -> list[te.Tensor]:
            doubled = te.compute(x.shape, lambda i: x[i] * tirx.const(2.0, "float32"))
            return [doubled, te.compute(x.shape, lambda i: x[i] * tirx.const(second, "float32"))]

        return kernel(compute, (100,))

    assert measure(two(1.0), two(1.0), tmp_path / "right").error == 0
    assert measure(two(1.0), two(1.5), tmp_path / "wrong").error == pytest.approx(0.5, rel=1e-5)


DOUBLED = """
  const float *x = a; float *y = b;
  for (int i = 0; i < {count}; ++i) y[i] = 2 * x[i];
  {then}
  return 0;
"""


def test_an_element_that_is_not_written_shows(tmp_path: Path) -> None:
    found = measure_c(scaled(2.0), DOUBLED.format(count=999, then=""), tmp_path)
    assert math.isinf(found.error)


def test_a_kernel_that_works_only_once_shows(tmp_path: Path) -> None:
    once = "static int runs; if (runs++) y[7] += 1;"
    assert measure_c(scaled(2.0), DOUBLED.format(count=1000, then=once), tmp_path).error > 0.1


@pytest.mark.parametrize("where", ["y[1000] = 1;", "y[-1] = 1;"])
def test_a_kernel_that_writes_beside_its_output_is_told(where: str, tmp_path: Path) -> None:
    with pytest.raises(TrialFailed, match=r"^the candidate wrote outside operand 1$"):
        measure_c(scaled(2.0), DOUBLED.format(count=1000, then=where), tmp_path)


def test_a_code_that_is_not_zero_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(TrialFailed, match=r"^the candidate failed with code 3: it gave no text$"):
        measure_c(scaled(2.0), "return 3;", tmp_path)


def test_nothing_finite_is_nothing_proven(tmp_path: Path) -> None:
    function = kernel(lambda x: te.compute(x.shape, lambda i: te.log(x[i] * x[i] * -1.0)), (100,))
    with pytest.raises(TrialFailed, match=r"^operand 1 has no finite value to compare with$"):
        measure(function, schedule(function, NATIVE), tmp_path)


def test_a_type_without_a_comparison_is_a_failure(tmp_path: Path) -> None:
    function = kernel(lambda x: te.compute(x.shape, lambda i: x[i]), (8,), dtypes=("float16",))
    expected = "^operand 'p0' is of type float16, which no trial can fill and compare$"
    with pytest.raises(TrialFailed, match=expected):
        build_trial(function, function, function, NATIVE, tmp_path)


@pytest.mark.slow
def test_a_library_holds_trials_of_its_own(tmp_path: Path) -> None:
    """Two in a process, with names open to each other: each runs its own kernels, more than once."""
    errors = []
    loaded = []
    for factor in (2.0, 3.0):
        function = scaled(2.0)
        candidate = schedule(scaled(factor), NATIVE)
        built = build_trial(function, candidate, schedule(function, NATIVE), NATIVE, tmp_path / str(factor), "library")
        library = ctypes.CDLL(str(built), mode=ctypes.RTLD_GLOBAL)
        library.gf_trial_run.argtypes = [ctypes.c_int, ctypes.c_double, ctypes.c_char_p, ctypes.c_size_t]
        loaded.append(library)
    for library in (*loaded, *loaded):
        text = ctypes.create_string_buffer(4096)
        assert library.gf_trial_run(2, 1e-4, text, len(text)) == 0
        errors.append(read_measurement(text.value.decode()).error)
        assert library.gf_trial_run(2, 1e-4, text, 16) == -1
    assert errors == [0, pytest.approx(0.5, rel=1e-5)] * 2


@pytest.mark.slow
def test_a_reference_is_compiled_once(tmp_path: Path) -> None:
    function = scaled(2.0)
    reference = compile_for_trial(schedule(function, NATIVE), "reference", NATIVE, tmp_path)
    written = reference.object.stat().st_mtime_ns
    for name, factor, error in (("right", 2.0, 0.0), ("wrong", 4.0, 1.0)):
        built = build_trial(function, schedule(scaled(factor), NATIVE), reference, NATIVE, tmp_path / name)
        assert LocalRunner(NATIVE, TURNS, 1e-4).run(built, 60).error == pytest.approx(error, rel=1e-5)
    assert reference.object.stat().st_mtime_ns == written


@pytest.mark.slow
def test_a_board_s_trial_runs_under_its_emulator(tmp_path: Path) -> None:
    board = find_target("rpi3")
    if shutil.which(board.emulator[0]) is None:
        skip_for_want(f"'{board.emulator[0]}' is not installed; apt install qemu-user-static")
    function = convolution()
    found = measure(function, schedule(function, board), tmp_path / "right", board)
    assert found.error == 0
    assert LocalRunner(board).kind == "emulated"
    pooled = kernel(lambda x: kernels.adaptive_avg_pool2d(x, (1, 1)), (2, 8, 8, 16))
    assert 0 <= measure(pooled, pooled, tmp_path / "pooled", board).error < 1e-5


def test_a_board_s_library_needs_no_newer_c_library(tmp_path: Path) -> None:
    """The linker's own check refuses symbols above the target's glibc, 2.17."""
    board = find_target("rpi3")
    function = scaled(2.0)
    built = build_trial(function, schedule(function, board), schedule(function, board), board, tmp_path, "library")
    assert built.read_bytes()[:4] == b"\x7fELF"


GOOD = {"error": 0.5, "candidate": [1.0, 2.0], "reference": [3.0, 4.0]}


def test_a_result_is_read() -> None:
    assert read_measurement(json.dumps(GOOD)) == Measurement(0.5, (1.0, 2.0), (3.0, 4.0))
    assert math.isinf(read_measurement('{"error": Infinity, "candidate": [1], "reference": [1]}').error)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"failure": "it broke"}', "it broke"),
        ("", "the trial's result cannot be read: ''"),
        ("[1]", "the trial's result cannot be read: '[1]'"),
        ('{"error": 0}', "the trial's result cannot be read: '{\"error\": 0}'"),
        ("x" * 100, f"the trial's result cannot be read: '{'x' * 80}...'"),
        (
            '{"error": 0, "candidate": [1], "reference": []}',
            'the trial\'s times make no sense: \'{"error": 0, "candidate": [1], "reference": []}\'',
        ),
        (
            '{"error": 0, "candidate": [0], "reference": [1]}',
            'the trial\'s times make no sense: \'{"error": 0, "candidate": [0], "reference": [1]}\'',
        ),
    ],
)
def test_whatever_is_no_result_is_a_failure(text: str, reason: str) -> None:
    with pytest.raises(TrialFailed) as failure:
        read_measurement(text)
    assert str(failure.value) == reason
