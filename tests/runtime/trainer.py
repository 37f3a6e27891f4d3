"""gf-train for the hand-written step of `linear_program.c`, in that step's artifact."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from gfcompile.codegen.link import trainer_sources
from gfcompile.runtime import checkpoint, manifest

from .conftest import FLAGS, RUNTIME


def link_trainer(folder: Path, *options: str) -> Path:
    """gf-train in an artifact's folder, as the compiler links it; all warnings are errors."""
    command = [
        "gcc",
        *FLAGS,
        "-std=gnu11",
        *options,
        f"-I{RUNTIME}",
        *map(str, trainer_sources()),
        "-lm",
        "-ldl",
        "-o",
        folder / "gf-train",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "gf-train"


def run(program: Path, *words: str | Path, code: int = 0) -> str:
    """What it prints, where it ends as expected."""
    done = subprocess.run([program, *map(str, words)], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


def options(tmp_path: Path, *more: str | Path) -> list[str | Path]:
    return ["--data", tmp_path / "x.npy", "--labels", tmp_path / "y.npy", "--checkpoint", tmp_path / "run.ckpt", *more]


def start_endless(
    artifact: Path, words: Sequence[str | Path], hang_up: signal.Handlers = signal.SIG_DFL
) -> subprocess.Popen[str]:
    """gf-train after its tenth step, with this disposition of SIGHUP: these tests may run under nohup themselves."""
    process = subprocess.Popen(
        [artifact / "gf-train", *map(str, words), "--epochs", "1000000000", "--progress", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, hang_up) and None,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step 10 "):
            break
    return process


def tensors_of(path: Path, folder: Path) -> dict[str, bytes]:
    found = checkpoint.load(path, manifest.read_manifest(folder))
    return {name: value.tobytes() for name, value in found.tensors.items()}


def _numbers(state: int) -> Iterator[int]:
    """splitmix64, from its published description."""
    mask = 2**64 - 1
    while True:
        state = (state + 0x9E3779B97F4A7C15) & mask
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        yield z ^ (z >> 31)


def order(seed: int, epoch: int, count: int) -> np.ndarray:
    """The order in which gf-train takes the samples of an epoch: Fisher and Yates's shuffle."""
    numbers = _numbers((next(_numbers(seed)) + epoch) % 2**64)
    found = np.arange(count)
    for i in range(count - 1, 0, -1):
        limit = (2**64 - 1) - (2**64 - 1) % (i + 1)
        other = next(number for number in numbers if number < limit) % (i + 1)
        found[[i, other]] = found[[other, i]]
    return found
