"""Threads, several steps in one process, forks, and a pool that sleeps."""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from gfcompile.codegen.link import runtime_sources
from gfcompile.runtime.step import Step
from tests.missing import skip_for_want

from .conftest import FLAGS, HERE, RUNTIME, Build, build_id_of

Batch = tuple[np.ndarray, np.ndarray]


def test_threads_can_be_changed_between_steps(build: Build, batch: Batch) -> None:
    with Step.load(build(), threads=1) as step, Step.load(build(name="other"), threads=1) as serial:
        for threads in (1, 4, 2, 16, 1):
            step.threads = threads
            assert step.threads == threads
            assert step.train(*batch) == serial.train(*batch)
        step.threads = None  # type: ignore[assignment]  # all online cores
        assert step.threads == len(os.sched_getaffinity(0))


def test_two_steps_and_two_libraries_at_once(build: Build, batch: Batch) -> None:
    folder = build()
    steps = [Step.load(folder, 2), Step.load(folder, 3), Step.load(build("LABELS", name="b"), 2)]
    alone = Step.load(folder, 1)
    expected = [alone.train(*batch) for _ in range(200)]
    targets = [batch[1], batch[1], np.array([0, 1, 2, 1])]
    with ThreadPoolExecutor(3) as executor:
        runs = executor.map(lambda i: [steps[i].train(batch[0], targets[i]) for _ in range(200)], range(3))
        first, second, labels = runs
    assert first == second == expected
    assert labels[-1] < labels[0]


def test_one_step_from_several_threads(build: Build, batch: Batch) -> None:
    """The same batch each time, so that the order of the calls does not show."""
    folder = build()
    with Step.load(folder, 2) as shared, Step.load(folder, 2) as alone:
        with ThreadPoolExecutor(4) as executor:
            losses = list(executor.map(lambda _: shared.train(*batch), range(400)))
        expected = [alone.train(*batch) for _ in range(400)]
        assert sorted(losses) == sorted(expected)
        assert shared.steps == 400
        for name, value in shared.state_dict().items():
            assert value.tobytes() == alone.state_dict()[name].tobytes(), name


def run_in_child(work: Callable[[], bool]) -> bool:
    """True when `work` returned True in a forked child within ten seconds."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if work() else 1
        finally:
            os._exit(code)
    stop = time.monotonic() + 10
    while time.monotonic() < stop:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status == 0
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return False


def test_a_forked_child_trains_on(build: Build, batch: Batch) -> None:
    step = Step.load(build(), threads=3)
    step.train(*batch)
    expected_step = Step.load(step._folder, threads=3)
    expected_step.train(*batch)
    expected = [expected_step.train(*batch) for _ in range(5)]
    assert run_in_child(lambda: [step.train(*batch) for _ in range(5)] == expected)
    assert [step.train(*batch) for _ in range(5)] == expected  # the parent is where it was


@pytest.mark.slow
def test_fork_while_other_threads_train(build: Build, batch: Batch) -> None:
    step, stop = Step.load(build(), threads=2), threading.Event()

    def train_on() -> None:
        while not stop.is_set():
            step.train(*batch, lr=0.0)

    threads = [threading.Thread(target=train_on) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        expected = step.train(*batch, lr=0.0)
        for _ in range(20):
            assert run_in_child(lambda: step.train(*batch, lr=0.0) == expected)
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_the_pool_sleeps_when_idle_and_ends_with_the_last_step(build: Build, batch: Batch) -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/task"))

    folder, before = build(), count()
    first, second = Step.load(folder, threads=4), Step.load(folder, threads=4)
    first.train(*batch)
    assert count() == before + 3
    start = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - start < 0.05
    first.close()
    assert second.train(*batch) > 0
    second.close()
    assert count() == before
    with Step.load(folder, threads=2) as again:
        assert again.train(*batch) > 0


def test_only_the_public_interface_is_exported(library: Callable[..., Path]) -> None:
    done = subprocess.run(["nm", "-D", "--defined-only", library()], capture_output=True, text=True, check=True)
    header = (RUNTIME / "gf_step.h").read_text()
    names = {line.split()[2] for line in done.stdout.splitlines()}
    assert names
    assert all(f"{name}(" in header for name in names), names


def test_c_interface_refuses_nonsense(library: Callable[..., Path]) -> None:
    c = ctypes.CDLL(str(library()))
    c.gf_error.restype = c.gf_build_id.restype = ctypes.c_char_p
    c.gf_step_tensor_bytes.restype = ctypes.c_size_t
    c.gf_step_create.restype = c.gf_step_tensor.restype = ctypes.c_void_p
    c.gf_step_train.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_float, ctypes.c_void_p]
    assert c.gf_build_id().decode() == build_id_of(())
    assert c.gf_step_train(None, None, 0.1, None) == c.gf_error_code() == 1
    assert c.gf_error() == b"gf_step_train: the step or its inputs are NULL"
    for rate, text in ((float("nan"), b"nan"), (float("inf"), b"inf"), (-0.5, b"-0.5")):
        assert c.gf_step_train(None, None, rate, None) == c.gf_error_code() == 1
        assert c.gf_error() == b"gf_step_train: the learning rate '" + text + b"' must be finite and not negative"
    assert c.gf_step_create(257) is None
    assert c.gf_error() == b"257 threads asked for; the most is 256"
    assert c.gf_step_tensor_bytes(6) == c.gf_step_tensor_bytes(-1) == 0
    assert c.gf_step_tensor(None, 0) is None
    c.gf_step_destroy(None)


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
@pytest.mark.parametrize(
    ("main", "others"),
    [
        ("stress.c", [HERE / "linear_program.c", *runtime_sources("cpu")]),
        ("pool_tasks.c", [RUNTIME / "gf_pool.c", RUNTIME / "gf_cores.c"]),
    ],
)
def test_under_a_sanitizer(tmp_path: Path, sanitizer: str, main: str, others: list[Path]) -> None:
    """C programs: two steps trained from three threads that change thread counts; the pool alone with uneven tasks."""
    sources = [HERE / main, *others]
    options = [f"-fsanitize={sanitizer}", f"-I{RUNTIME}", '-DBUILD_ID="stress"', "-pthread"]
    program = tmp_path / "program"
    command = ["gcc", *FLAGS, *options, "-o", str(program), *map(str, sources), "-lm"]
    built = subprocess.run(command, capture_output=True, text=True)
    if built.returncode and "cannot find" in built.stderr:
        skip_for_want("the sanitizer's library is not installed; install the compiler's sanitizer libraries")
    assert built.returncode == 0, built.stderr
    done = subprocess.run([program], capture_output=True, text=True, timeout=120)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("this kernel's address layout is too random for the thread sanitizer")
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
