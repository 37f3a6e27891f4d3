"""Big and little cores, as a folder like Linux's describes them: where threads run, and how many there are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from .conftest import RUNTIME
from .harness import build_program

CORES = sorted(os.sched_getaffinity(0))
ALL = sum(1 << core for core in CORES)
FIRST = 1 << CORES[0]
CAPACITY, FREQUENCY = "cpu_capacity", "cpufreq/cpuinfo_max_freq"
SCRIPT = """
import ctypes, json, os, sys
c = ctypes.CDLL(sys.argv[1])
if sys.argv[3] != "all":
    os.sched_setaffinity(0, json.loads(sys.argv[3]))
masks = (ctypes.c_ulong * 3)()
threads = c.default_threads()
c.places(int(sys.argv[2]), masks)
print(json.dumps([threads, list(masks)]))
"""

needs_two_cores = pytest.mark.skipif(len(CORES) < 2 or CORES[-1] > 63, reason="needs two cores to tell apart")


def describe(folder: Path, file: str, speeds: Mapping[int, str]) -> Path:
    for core, speed in speeds.items():
        path = folder / f"cpu{core}" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{speed}\n")
    return folder


def ask(tmp_path: Path, lane: int = 0, chosen: list[int] | None = None) -> tuple[int, list[int]]:
    """In a process of its own: what is found is kept for a process's life."""
    options = [str(RUNTIME / name) for name in ("gf_cores.c", "gf_pool.c")]
    library = build_program("cores.c", tmp_path / "libcores.so", *options, f'-DGF_CPU_FOLDER="{tmp_path}"', "-shared")
    arguments = [str(library), str(lane), "all" if chosen is None else json.dumps(chosen)]
    done = subprocess.run([sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, check=True)
    threads, masks = json.loads(done.stdout)
    return threads, masks


def one_fast(fast: str, slow: str) -> dict[int, str]:
    return {core: fast if core == CORES[0] else slow for core in CORES}


@needs_two_cores
@pytest.mark.parametrize("file", [CAPACITY, FREQUENCY])
def test_threads_keep_to_the_big_cores(tmp_path: Path, file: str) -> None:
    describe(tmp_path, file, one_fast("1024", "446"))
    assert ask(tmp_path) == (1, [ALL, FIRST, ALL])


@needs_two_cores
def test_capacity_goes_before_frequency(tmp_path: Path) -> None:
    """Little cores with a high clock stay little."""
    describe(tmp_path, CAPACITY, one_fast("1024", "446"))
    describe(tmp_path, FREQUENCY, one_fast("1000000", "1800000"))
    assert ask(tmp_path) == (1, [ALL, FIRST, ALL])


@needs_two_cores
def test_more_threads_than_big_cores_run_anywhere(tmp_path: Path) -> None:
    describe(tmp_path, CAPACITY, one_fast("1024", "446"))
    assert ask(tmp_path, lane=1) == (1, [ALL, ALL, ALL])


@pytest.mark.slow
@pytest.mark.parametrize(
    "speeds",
    [
        {},  # nothing told
        dict.fromkeys(CORES, "1024"),  # alike
        one_fast("1024", "900"),  # nearly alike
        {CORES[0]: "1024"},  # not of all cores
        one_fast("1024", "fast"),  # not a number
    ],
)
def test_else_nothing_changes(tmp_path: Path, speeds: dict[int, str]) -> None:
    describe(tmp_path, CAPACITY, speeds)
    assert ask(tmp_path) == (len(CORES), [ALL, ALL, ALL])


@needs_two_cores
def test_a_users_choice_of_cores_stays(tmp_path: Path) -> None:
    describe(tmp_path, CAPACITY, one_fast("1024", "446"))
    little = CORES[1:]
    mask = sum(1 << core for core in little)
    assert ask(tmp_path, chosen=little) == (len(little), [mask, mask, mask])


@needs_two_cores
def test_a_step_runs_on_the_big_core(tmp_path: Path) -> None:
    """The pool's own threads, while they wait for work: as many as there are big cores, on those."""
    describe(tmp_path, CAPACITY, one_fast("1024", "446"))
    sources = [str(RUNTIME / name) for name in ("gf_cores.c", "gf_pool.c")]
    program = build_program("pool_places.c", tmp_path / "places", *sources, f'-DGF_CPU_FOLDER="{tmp_path}"')
    done = subprocess.run([program, "2"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [
        str(ALL),
        str(ALL),
    ]  # two threads, one big core: the second is free, and so the first
    done = subprocess.run([program, "1"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(FIRST)]
