"""gf-train linked to the hand-written step of `linear_program.c`, in that step's artifact."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from .conftest import FLAGS, RUNTIME

SOURCES = [str(path) for path in sorted((RUNTIME / "train").glob("*.c"))]


def link_trainer(folder: Path, *options: str) -> Path:
    """gf-train in the folder of a library, as the compiler links it; all warnings are errors."""
    found = [f"-L{folder}", "-Wl,--no-as-needed", "-l:libstep.so", "-Wl,-rpath,$ORIGIN"]
    command = [
        "gcc",
        *FLAGS,
        "-std=gnu11",
        *options,
        f"-I{RUNTIME}",
        *SOURCES,
        *found,
        "-lm",
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
