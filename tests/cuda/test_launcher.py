"""The CUDA launcher on the stand-in driver: numbers, what is copied when, what is left behind, and every error text."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.cuda.emulator import driver_environment
from tests.cuda.images import write_cubin, write_ptx
from tests.cuda.linear_board import AARCH64, CUBIN, KERNELS, PTX, X86, Board, Machine
from tests.missing import skip_for_want

TRAIN = ["upload 512", "upload 128", "upload 4", *["launch"] * 5, "download 4", "cuStreamSynchronize"]


@pytest.fixture(scope="module")
def boards(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Machine], Board]:
    known: dict[Machine, Board] = {}

    def find(machine: Machine) -> Board:
        if machine not in known:
            known[machine] = Board(machine, tmp_path_factory.mktemp("board"))
        return known[machine]

    return find


@pytest.fixture(scope="module")
def board(boards: Callable[[Machine], Board]) -> Board:
    return boards(X86)


def numbers(lines: Sequence[str]) -> list[tuple[str, np.ndarray]]:
    return [(line.split()[0], np.array(line.split()[1:], np.float64)) for line in lines]


def values(count: int, seed: int) -> np.ndarray:
    return ((np.arange(count) * 37 + seed * 11) % 23 - 11) / 16


class Linear:
    """What linear_step.c computes, in NumPy."""

    def __init__(self) -> None:
        self.x, self.target = values(128, 1).reshape(8, 16), values(32, 2).reshape(8, 4)
        self.w, self.b = values(64, 3).reshape(16, 4), values(4, 4)

    def gradients(self) -> tuple[float, np.ndarray, np.ndarray]:
        difference = self.x @ self.w + self.b - self.target
        return (difference**2).mean(), self.x.T @ difference / 16, difference.sum(0) / 16

    def train(self) -> float:
        loss, dw, db = self.gradients()
        self.w, self.b = self.w - 0.25 * dw, self.b - 0.25 * db
        return loss


@pytest.mark.slow
@pytest.mark.parametrize("machine", [X86, AARCH64], ids=["x86", "aarch64"])
def test_the_numbers_are_right(boards: Callable[[Machine], Board], machine: Machine) -> None:
    calls = (
        "create",
        "predict",
        "gradients",
        "train",
        "thread:train",
        "features",
        "train_features",
        "state",
        "destroy",
    )
    lines = numbers(boards(machine).run(*calls))
    oracle = Linear()
    expected = [("predict", oracle.x @ oracle.w + oracle.b)]
    expected += zip(("loss", "dw", "db"), oracle.gradients(), strict=True)
    expected += [("loss", oracle.train()), ("loss", oracle.train()), ("features", oracle.x)]
    expected += [("loss", oracle.train()), ("w", oracle.w), ("b", oracle.b)]
    assert [name for name, _ in lines] == [name for name, _ in expected]
    for (name, found), (_, value) in zip(lines, expected, strict=True):
        np.testing.assert_allclose(found, np.ravel(value), atol=1e-6, err_msg=name)


def read_log(log: Path) -> list[str]:
    """The driver's calls, launches without their sizes."""
    return ["launch" if line.startswith("launch") else line for line in log.read_text().splitlines()]


def test_copies_only_at_the_door(board: Board, tmp_path: Path) -> None:
    log = tmp_path / "log"
    board.run("create", "train", "train", "predict", "gradients", "features", "train_features", "destroy", log=log)
    calls = read_log(log)
    steps = calls[calls.index("upload 16") + 2 : calls.index("cuMemFree_v2")]  # after the last tensor of the state
    assert steps == [
        *TRAIN,
        *TRAIN,
        *["upload 512", "launch", "download 128", "cuStreamSynchronize"],
        *["upload 512", "upload 128", *["launch"] * 3, "download 256", "download 16", "download 4"],
        "cuStreamSynchronize",
        *["upload 512", "copy 512", "download 512", "cuStreamSynchronize"],
        *TRAIN,
    ]


def test_nothing_is_left_on_the_device(board: Board, tmp_path: Path) -> None:
    log = tmp_path / "log"
    board.run("create", "train", "destroy", "create", "train", "destroy", log=log)
    calls = read_log(log)
    assert calls[-1] == "end: 0 allocations, 0 modules, 0 streams, 0 contexts"
    assert sum(call.startswith("cuMemAlloc_v2") for call in calls) == 6  # arena, state, doors; twice
    assert calls.count("cuDevicePrimaryCtxRetain") == 2


def test_what_is_the_hosts_stays_so(board: Board) -> None:
    assert board.run("create", "threads", "tensor", "destroy") == [
        "threads 1",
        "tensor failed with 8: gf_step_tensor: the state is in the device's memory; use gf_step_get and gf_step_set",
    ]


@pytest.mark.parametrize(
    ("capability", "images", "loaded"),
    [
        (53, [PTX, CUBIN], ["cubin: 0"]),
        (62, [CUBIN, (62, write_cubin(62, KERNELS)), PTX], ["cubin: 0"]),
        (87, [(86, write_cubin(86, KERNELS)), PTX], ["ptx: 0"]),
        (87, [CUBIN, PTX], ["ptx: 0"]),
        (89, [(87, write_cubin(87, KERNELS)), (86, write_cubin(86, KERNELS)), PTX], ["cubin: 0"]),
        (53, [(53, write_cubin(62, KERNELS)), PTX], ["cubin: 209", "ptx: 0"]),
    ],
)
def test_the_best_image_is_loaded(
    board: Board, tmp_path: Path, capability: int, images: list[tuple[int, bytes]], loaded: list[str]
) -> None:
    log = tmp_path / "log"
    assert board.run("create", images=images, capability=capability, log=log) == []
    assert [line for line in read_log(log) if "cuModuleLoadData" in line] == [f"cuModuleLoadData {it}" for it in loaded]


MEMORY, DEVICE = 6, 8  # of gf_step.h


def failed(call: str, text: str, code: int = DEVICE) -> str:
    """What run_step.c prints."""
    return f"{call} failed with {code}: {text}"


SMALL_PRINT = "free memory or compile a smaller batch"


@pytest.mark.parametrize(
    ("settings", "images", "text"),
    [
        (
            {"capability": 53, "name": "NVIDIA Tegra X1"},
            [(87, write_cubin(87, KERNELS)), (87, write_ptx(87, KERNELS))],
            "this step was compiled for sm_87 (jetson-orin), the device 'NVIDIA Tegra X1' is sm_53;"
            " compile with --target jetson-nano",
        ),
        (
            {"capability": 87, "name": "Orin"},
            [CUBIN],
            "this step was compiled for sm_53 (jetson-nano), the device 'Orin' is sm_87;"
            " compile with --target jetson-orin",
        ),
        (
            {"capability": 86, "name": "RTX"},
            [(72, write_cubin(72, KERNELS))],
            "this step was compiled for sm_72 (jetson-xavier), the device 'RTX' is sm_86;"
            " compile with --target cuda --arch sm_86",
        ),
        (
            {"capability": 87, "version": 11040},
            [(72, write_ptx(72, KERNELS, "8.8"))],
            "the driver (CUDA 11.4) of device 'stand-in' (sm_87) does not take this step's kernels:"
            " CUDA_ERROR_UNSUPPORTED_PTX_VERSION; update it, or compile with --target jetson-orin",
        ),
        (
            {"devices": 0},
            [CUBIN],
            "the CUDA driver finds no device; see whether CUDA_VISIBLE_DEVICES hides it, or run this on a machine with"
            " an NVIDIA GPU",
        ),
        (
            {"fail": "cuInit=3"},
            [CUBIN],
            "the CUDA driver does not start: CUDA_ERROR_NOT_INITIALIZED (initialization error)",
        ),
        (
            {"fail": "cuDevicePrimaryCtxRetain=2"},
            [CUBIN],
            "the device gives no context: CUDA_ERROR_OUT_OF_MEMORY (out of memory)",
        ),
        (
            {"fail": "cuStreamCreate=2"},
            [CUBIN],
            "the device gives no stream: CUDA_ERROR_OUT_OF_MEMORY (out of memory)",
        ),
        (
            {"fail": "cuModuleLoadData=2", "name": "Nano"},
            [CUBIN, PTX],
            "the device 'Nano' has no memory for the step's kernels; free some",
        ),
        (
            {"fail": "cuMemAlloc_v2=2@1"},
            [CUBIN],
            "cannot allocate 512 bytes for the arena on device 'stand-in', which has 1073741824 of 1073741824 left; "
            + SMALL_PRINT,
        ),
        (
            {"fail": "cuMemAlloc_v2=2@2"},
            [CUBIN],
            "cannot allocate 320 bytes for the state on device 'stand-in', which has 1073741312 of 1073741824 left; "
            + SMALL_PRINT,
        ),
        (
            {"fail": "cuMemAlloc_v2=2@3"},
            [CUBIN],
            "cannot allocate 1792 bytes for the inputs and outputs on device 'stand-in', which has 1073740992 of"
            " 1073741824 left; " + SMALL_PRINT,
        ),
        (
            {"fail": "cuMemAlloc_v2=999"},
            [CUBIN],
            "memory of the device cannot be allocated: CUDA error 999 (see the name)",
        ),
        (
            {"fail": "cuMemcpyHtoDAsync_v2=1@1"},
            [CUBIN],
            "copy to the device: CUDA_ERROR_INVALID_VALUE (invalid argument)",
        ),
    ],
)
def test_a_step_that_cannot_be_created(
    board: Board, tmp_path: Path, settings: dict[str, object], images: list[tuple[int, bytes]], text: str
) -> None:
    log = tmp_path / "log"
    code = MEMORY if SMALL_PRINT in text or "has no memory" in text else DEVICE
    assert board.run("create", images=images, log=log, **settings) == [failed("create", text, code)]
    if log.exists():
        assert read_log(log)[-1] == "end: 0 allocations, 0 modules, 0 streams, 0 contexts"


def test_a_kernel_that_no_image_has(board: Board) -> None:
    text = "kernel 'refresh' is missing from the step's module (CUDA_ERROR_NOT_FOUND); recompile the step"
    assert board.run("create", defines=["UNKNOWN_KERNEL"]) == [failed("create", text)]


@pytest.mark.parametrize("machine", [X86, AARCH64], ids=["x86", "aarch64"])
def test_no_driver(boards: Callable[[Machine], Board], machine: Machine) -> None:
    (line,) = boards(machine).run("create", environment={})
    assert line == (
        "create failed with 8: the CUDA driver cannot be loaded (libcuda.so.1: cannot open shared object file: No such"
        " file or directory); install NVIDIA's driver, on a Jetson it comes with JetPack"
    )


def test_an_old_driver(board: Board, tmp_path: Path) -> None:
    source = tmp_path / "old.c"
    source.write_text("int cuInit(unsigned flags) { return (int)flags; }")
    subprocess.run(["gcc", "-shared", "-fPIC", str(source), "-o", str(tmp_path / "libcuda.so.1")], check=True)
    text = "the CUDA driver is too old: it has no cuDriverGetVersion; update it, CUDA 10 (JetPack 4) or later will do"
    assert board.run("create", environment={"LD_LIBRARY_PATH": str(tmp_path)}) == [failed("create", text)]


def test_a_forked_child_is_told(board: Board, tmp_path: Path) -> None:
    log = tmp_path / "log"
    text = (
        "this process was made by fork() after the first gf_step_create, and CUDA does not live on in a child; create"
        " steps in the child only, or start a new process"
    )
    calls = ("create", "fork:train", "fork:create", "fork:state", "fork:destroy", "train", "destroy", "fork:create")
    child_train, child_create, child_state, parent_train, late_create = board.run(*calls, log=log)
    assert child_train == failed("train", text)
    assert child_create == late_create == failed("create", text)
    assert child_state == failed("state", text)
    assert parent_train.startswith("loss ")
    assert read_log(log)[-1] == "end: 0 allocations, 0 modules, 0 streams, 0 contexts"


def test_a_child_may_be_the_first_to_create(board: Board) -> None:
    assert board.run("fork:create") == []


def test_a_launch_that_no_device_takes(board: Board) -> None:
    assert board.run("create", "predict", defines=["LARGE_BLOCK"]) == [
        "predict failed with 7: kernel 'forward' cannot be launched on 8x1x1 blocks of 5x1x1 threads:"
        " CUDA_ERROR_INVALID_VALUE",
        "stand-in libcuda: kernel 'forward': a block of 5; at most 4, at least 1",
    ]


@pytest.mark.parametrize(
    ("define", "seen"),
    [
        ("LARGE_GRID", "block (8,0,0): thread (0,0,0) reads 4 bytes out of bounds: argument 0 ('x') +512 bytes"),
        ("SWAPPED", "block (5,0,0): thread (0,0,0) reads 4 bytes out of bounds: argument "),
    ],
)
def test_a_wrong_launch_is_seen(board: Board, define: str, seen: str) -> None:
    said, shown = board.run("create", "train", defines=[define])
    assert said == (
        "train failed with 7: a kernel failed on the device: CUDA_ERROR_ILLEGAL_ADDRESS; the last one queued was"
        " 'update'; run again with GF_CUDA_BLOCKING=1 to learn which"
    )
    assert shown.startswith(f"stand-in libcuda: kernel 'forward', {seen}")


def test_a_failed_kernel_can_be_found(board: Board) -> None:
    environment = {**driver_environment(board.driver, board.kernels), "GF_CUDA_BLOCKING": "1"}
    said, _ = board.run("create", "train", defines=["LARGE_GRID"], environment=environment)
    assert said == "train failed with 7: kernel 'forward' failed on the device: CUDA_ERROR_ILLEGAL_ADDRESS"


@pytest.mark.parametrize(
    ("call", "fail", "text"),
    [
        ("train", "cuMemcpyHtoDAsync_v2=1@4", "copy to the device: CUDA_ERROR_INVALID_VALUE (invalid argument)"),
        ("train", "cuMemcpyDtoHAsync_v2=1@1", "copy from the device: CUDA_ERROR_INVALID_VALUE (invalid argument)"),
        ("features", "cuMemcpyDtoDAsync_v2=1", "copy on the device: CUDA_ERROR_INVALID_VALUE (invalid argument)"),
        ("state", "cuStreamSynchronize=719@4", "the device failed: CUDA error 719 (see the name)"),
        (
            "train",
            "cuCtxSetCurrent=201@5",
            "the device's context cannot be used: CUDA_ERROR_INVALID_CONTEXT (see the name)",
        ),
    ],
)
def test_a_call_that_fails(board: Board, call: str, fail: str, text: str) -> None:
    assert board.run("create", call, fail=fail) == [failed(call, text)]


def test_a_failed_call_leaves_nothing_in_the_queue(board: Board, tmp_path: Path) -> None:
    """A result that is still to be copied to the caller would be written into memory that may be gone."""
    log = tmp_path / "log"
    board.run("create", "gradients", "destroy", fail="cuMemcpyDtoHAsync_v2=1@2", log=log)
    calls = read_log(log)
    assert calls[calls.index("download 256") + 1] == "cuStreamSynchronize"


def test_the_small_images_are_what_they_seem(tmp_path: Path) -> None:
    if not shutil.which("readelf"):
        skip_for_want("'readelf' is not installed; apt install binutils")
    (tmp_path / "cubin").write_bytes(write_cubin(72, KERNELS))
    done = subprocess.run(["readelf", "-hsW", str(tmp_path / "cubin")], capture_output=True, text=True, check=True)
    assert "NVIDIA CUDA architecture" in done.stdout
    assert "Flags:                             0x48" in done.stdout
    assert [line.split()[-1] for line in done.stdout.splitlines() if "FUNC" in line] == list(KERNELS)
