"""Trials of a GPU's kernels: launched by our launcher, here with the emulator behind the stand-in driver."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import tvm
from tvm import tirx

from gfcompile.codegen import kernels
from gfcompile.codegen.schedules import schedule
from gfcompile.codegen.tuned.database import Database, kernel_hash, target_key
from gfcompile.codegen.tuned.tasks import Task
from gfcompile.errors import ContractError
from gfcompile.targets import find_target
from gfcompile.tuning import trial
from gfcompile.tuning.builders import BuildPool, Built
from gfcompile.tuning.session import Session
from gfcompile.tuning.space import Candidate, draw
from gfcompile.tuning.status import Budget
from gfcompile.tuning.trial import CUDA_SOURCE, Measurement, TrialFailed, TrialKernel, build_trial, read_measurement
from tests.cuda.emulator import build, build_driver, driver_environment
from tests.missing import skip_for_want
from tests.tuning.kernels import kernel, scaled

NATIVE, NANO = find_target("native"), find_target("jetson-nano")
HERE = replace(NANO, tvm=NATIVE.tvm, link=NATIVE.link, glibc=None)  # its GPU beside this machine's processor
PRODUCT = kernel(lambda a, b: kernels.matmul(a, b, False, True), (33, 64), (40, 64))
TURNS = 2


class EmulatedGpu:
    """Runs trials as programs, on a GPU that is none: their times mean nothing."""

    kind = "emulated"
    form: trial.Kind = "program"

    def __init__(self, driver: Path) -> None:
        self.driver = driver

    def boards(self) -> int:
        return 1

    def read_machine(self) -> dict[str, object]:
        return {"gpu": "emulated"}

    def close(self) -> None:
        """Nothing is kept."""

    def run(self, built: Path, timeout: float = 120, **settings: object) -> Measurement:
        done = self.start([str(built), str(TURNS), "1e-4"], built.parent, timeout, **settings)
        assert done.returncode == 0, done.stderr
        return read_measurement(done.stdout)

    def start(
        self, command: list[str], folder: Path, timeout: float = 120, **settings: object
    ) -> subprocess.CompletedProcess[str]:
        emulated = folder / "emulated.so"
        if not emulated.exists():
            build((folder / CUDA_SOURCE).read_text(), emulated, race_check=True)
        variables = {**os.environ, **driver_environment(self.driver, emulated, **settings)}
        return subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=timeout)


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> EmulatedGpu:
    return EmulatedGpu(build_driver(tmp_path_factory.mktemp("driver")))


def as_decided(function: tirx.PrimFunc, template: str = "matmul", **decisions: object) -> tirx.PrimFunc:
    return draw(function, HERE, Candidate(template, decisions)).function  # type: ignore[arg-type]


def build_here(function: tirx.PrimFunc, candidate: tirx.PrimFunc, folder: Path, kind: trial.Kind = "program") -> Path:
    return build_trial(function, candidate, schedule(function, HERE), HERE, folder, kind)


@pytest.mark.slow
def test_another_tile_computes_the_same(gpu: EmulatedGpu, tmp_path: Path) -> None:
    built = build_here(PRODUCT, as_decided(PRODUCT, tile=(16, 16, 2, 2), depth=16), tmp_path)
    log = tmp_path / "calls.txt"
    found = gpu.run(built, log=log)
    assert 0 <= found.error < 1e-5
    assert len(found.seconds) == len(found.reference) == TURNS
    assert all(seconds > 0 for seconds in (*found.seconds, *found.reference))
    calls = log.read_text()
    assert calls.splitlines()[-1] == "end: 0 allocations, 0 modules, 0 streams, 0 contexts"


@pytest.mark.slow
def test_a_wrong_kernel_is_told(gpu: EmulatedGpu, tmp_path: Path) -> None:
    built = build_here(scaled(2.0), schedule(scaled(2.5), HERE), tmp_path)
    assert gpu.run(built).error == pytest.approx(0.25, rel=1e-5)


@pytest.mark.slow
def test_several_launches_hand_on_a_workspace(gpu: EmulatedGpu, tmp_path: Path) -> None:
    """Candidate and reference have their own, or none at all."""
    pooled = kernel(lambda x: kernels.adaptive_avg_pool2d(x, (1, 1)), (2, 16, 16, 24))
    built = build_here(pooled, as_decided(pooled, "rest", **{"parts 0": 8}), tmp_path / "both")
    assert "void *workspace" in (tmp_path / "both" / "launches.c").read_text()
    assert 0 <= gpu.run(built).error < 1e-5
    alone = build_here(pooled, as_decided(pooled, "single"), tmp_path / "one")
    assert 0 <= gpu.run(alone).error < 1e-5


def edited(folder: Path, change: Callable[[str], str]) -> Path:
    """The trial of a kernel against itself, the first launch of the candidate changed."""
    function = scaled(2.0)
    scheduled = schedule(function, HERE)
    candidate, reference = trial.compile_pair(scheduled, scheduled, HERE, folder)
    text = candidate.object.read_text()
    candidate.object.write_text(change(text))
    assert candidate.object.read_text() != text
    return trial.link_trial(function, candidate, reference, HERE, folder, "program")


@pytest.mark.slow
def test_an_element_that_no_thread_writes_shows(gpu: EmulatedGpu, tmp_path: Path) -> None:
    built = edited(tmp_path, lambda text: text.replace("gf_cuda_launch(0, 4,", "gf_cuda_launch(0, 3,"))
    assert gpu.run(built).error == float("inf")


@pytest.mark.slow
def test_a_launch_that_the_driver_refuses_is_a_failure(gpu: EmulatedGpu, tmp_path: Path) -> None:
    built = edited(
        tmp_path, lambda text: text.replace("gf_cuda_launch(0, 4, 1, 1, 256,", "gf_cuda_launch(0, 4, 1, 1, 2048,")
    )
    with pytest.raises(
        TrialFailed, match=r"^the candidate failed with code -1: kernel '\w+' cannot be launched on 4x1x1"
    ):
        gpu.run(built)


@pytest.mark.slow
def test_a_fault_on_the_device_is_a_failure(gpu: EmulatedGpu, tmp_path: Path) -> None:
    built = build_here(scaled(2.0), schedule(scaled(2.0), HERE), tmp_path)
    with pytest.raises(TrialFailed, match=r"^the reference failed: a kernel failed on the device: CUDA_ERROR_"):
        gpu.run(built, fail="cuStreamSynchronize=700@1")


@pytest.mark.slow
def test_a_machine_without_a_driver_says_so(tmp_path: Path) -> None:
    built = build_here(scaled(2.0), schedule(scaled(2.0), HERE), tmp_path)
    bare = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    done = subprocess.run([str(built), "1", "1e-4"], env=bare, capture_output=True, text=True, check=True)
    if "the CUDA driver cannot be loaded" not in done.stdout:
        skip_for_want("this machine has a CUDA driver")
    with pytest.raises(TrialFailed, match=r"^the CUDA driver cannot be loaded \(.*on a Jetson it comes with JetPack$"):
        read_measurement(done.stdout)


LOADED = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.gf_trial_run.argtypes = [ctypes.c_int, ctypes.c_double, ctypes.c_char_p, ctypes.c_size_t]
text = ctypes.create_string_buffer(4096)
for _ in range(2):
    assert library.gf_trial_run(1, 1e-4, text, len(text)) == 0
print(text.value.decode())
"""


@pytest.mark.slow
def test_a_library_runs_more_than_once(gpu: EmulatedGpu, tmp_path: Path) -> None:
    """As a board's server loads it."""
    built = build_here(scaled(2.0), schedule(scaled(3.0), HERE), tmp_path, "library")
    done = gpu.start([sys.executable, "-c", LOADED, str(built)], tmp_path)
    assert done.returncode == 0, done.stderr
    assert read_measurement(done.stdout).error == pytest.approx(0.5, rel=1e-5)


@pytest.mark.slow
def test_what_ptxas_refuses_is_no_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gfcompile.codegen.cuda import module

    usual = module.assemble

    def count(registers: int, spilled: int) -> Callable[..., dict[str, tuple[int, int, int]]]:
        changed = {"gf_trial_candidate_kernel_0_kernel": (registers, 0, spilled)}
        return lambda *arguments: {**usual(*arguments), **changed}

    monkeypatch.setattr(module, "assemble", count(64, 48))
    with pytest.raises(TrialFailed, match=r"^the candidate cannot be built: ptxas spills 48 bytes of its registers$"):
        build_here(scaled(2.0), schedule(scaled(2.0), HERE), tmp_path)
    monkeypatch.setattr(module, "assemble", count(200, 0))
    with pytest.raises(TrialFailed, match=r"takes 51200 registers per block, sm_53 has 32768$"):
        build_here(scaled(2.0), schedule(scaled(2.0), HERE), tmp_path)


def test_a_reference_must_not_be_compiled_apart(tmp_path: Path) -> None:
    compiled = TrialKernel(tmp_path / "reference.o", trial.Workspace(0, 0))
    with pytest.raises(ContractError, match="give it as it is scheduled"):
        build_trial(scaled(2.0), schedule(scaled(2.0), HERE), compiled, HERE, tmp_path)


@pytest.mark.slow
def test_a_jetson_s_library_is_for_its_processor_and_its_glibc(tmp_path: Path) -> None:
    """The linker's own check refuses symbols above 2.17."""
    scheduled = schedule(PRODUCT, NANO)
    built = build_trial(PRODUCT, scheduled, scheduled, NANO, tmp_path, "library")
    assert built.read_bytes()[18] == 183  # EM_AARCH64


@pytest.mark.slow
def test_workers_build_them(gpu: EmulatedGpu, tmp_path: Path) -> None:
    function = str(tvm.ir.save_json(PRODUCT))
    asked = {depth: Candidate("matmul", {"tile": (32, 32, 2, 2), "depth": depth}) for depth in (8, 16)}
    with BuildPool(HERE, 1, tmp_path) as pool:
        for depth, candidate in asked.items():
            pool.submit(depth, function, candidate)
        done: dict[int, Built | TrialFailed] = dict(pool)
    for depth, made in done.items():
        assert isinstance(made, Built), made
        assert made.candidate.decisions == asked[depth].decisions
        assert 0 <= gpu.run(made.path).error < 1e-5


@pytest.mark.slow
def test_a_session_keeps_what_was_emulated_apart(gpu: EmulatedGpu) -> None:
    """As for any machine; the compiler follows nothing of it."""
    database = Database()
    task = Task(kernel_hash(PRODUCT), "product", PRODUCT, 1)
    Session([task], HERE, database, gpu, workers=1).run(Budget(trials=3))
    assert len({str(record.decisions) for record in database.records}) > 1
    assert {record.kind for record in database.records} == {"emulated"}
    assert {record.failure for record in database.records} == {None}
    assert database.best(task.kernel, target_key(HERE)) is None
