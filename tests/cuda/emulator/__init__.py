"""Runs CUDA kernels on the CPU, with real barriers and a check for races: correctness where there is no GPU."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from tests.missing import skip_for_want

from .source import translate

HERE = Path(__file__).parent
# TVM reads arrays of floats through pointers to vectors, and an index out of bounds must stay one. gcc 12's vectorizer
# takes sums of comparisons with the wrong sign.
FLAGS = (
    "-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-fno-strict-aliasing", "-fno-aggressive-loop-optimizations",
    "-fno-math-errno", "-fno-tree-vectorize",
)  # fmt: skip
# Accesses as they stand in the source: none merged, none hidden in a library's function.
CHECKED = (
    "-fsanitize=thread", "-fno-store-merging", "-fno-tree-loop-distribute-patterns",
    "-fno-optimize-sibling-calls", "--param=tsan-instrument-func-entry-exit=0",
)  # fmt: skip
PACKAGES = dict.fromkeys(("aarch64-linux-gnu-gcc", "aarch64-linux-gnu-g++"), "g++-aarch64-linux-gnu")
PARTS = ("blocks.cpp", "fiber.cpp", "memory.cpp", "race.cpp")


class EmulatorError(Exception):
    """A kernel did what no device would forgive: a race, an access out of bounds, a barrier not reached by all."""


def build(
    source: str,
    out: Path,
    race_check: bool = False,
    compiler: str = "g++",
    extents: Mapping[str, Sequence[int]] | None = None,
) -> Path:
    """Compile CUDA C for the emulator into the shared library `out`.

    `extents` gives, for kernels by name, the bytes behind each parameter (0 for one that is no pointer); with race
    checks an access outside of them is then an error, even where it meets other memory of the device.
    """
    with tempfile.TemporaryDirectory() as folder:
        unit, kernels = Path(folder, "kernels.cpp"), Path(folder, "kernels.o")
        unit.write_text(translate(source, race_check, extents))
        checked = CHECKED if race_check else ()
        _run([compiler, *FLAGS, *checked, "-w", f"-I{HERE}", "-c", str(unit), "-o", str(kernels)])
        parts = _machine(compiler)
        _run([compiler, "-shared", "-static-libstdc++", "-static-libgcc", str(kernels), *parts, "-o", str(out)])
    return out


def build_driver(folder: Path, compiler: str = "gcc") -> Path:
    """The stand-in for the CUDA driver, as `folder`/libcuda.so.1; returns the folder, for LD_LIBRARY_PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    flags = ("-std=gnu11", "-O2", "-fPIC", "-Wall", "-Wextra", "-Werror", "-shared", "-pthread")
    _run([compiler, *flags, str(HERE / "fake_libcuda.c"), "-ldl", "-o", str(folder / "libcuda.so.1")])
    return folder


def driver_environment(driver: Path, kernels: Path, **settings: object) -> dict[str, str]:
    """What a process needs to find the stand-in; `settings` as in fake_libcuda.c: `capability=87`, `log=path`."""
    named = {f"GF_FAKE_CUDA_{name.upper()}": str(value) for name, value in settings.items()}
    return {"LD_LIBRARY_PATH": str(driver), "GF_FAKE_CUDA_KERNELS": str(kernels), **named}


def launch(library: Path, kernel: str, grid: Sequence[int], block: Sequence[int], arrays: Sequence[np.ndarray]) -> None:
    """Run one kernel on copies of the arrays in the emulator's memory; afterwards they hold what it left there.

    Grid and block have up to three sizes; arrays come in the order of the kernel's parameters.
    """
    loaded = _load(library)
    number = loaded.gf_emulator_kernel(kernel.encode())
    if number < 0:
        raise EmulatorError(f"there is no kernel '{kernel}' in '{library}'")
    devices = [loaded.gf_emulator_allocate(array.nbytes) for array in arrays]
    try:
        for device, array in zip(devices, arrays, strict=True):
            host = np.ascontiguousarray(array)
            ctypes.memmove(loaded.gf_emulator_host(device, array.nbytes), host.ctypes.data, array.nbytes)
        values = [ctypes.c_uint64(device) for device in devices]
        arguments = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        sizes = (ctypes.c_uint * 6)(*_three(grid), *_three(block))
        if loaded.gf_emulator_launch(number, sizes, arguments):
            raise EmulatorError(loaded.gf_emulator_error().decode())
        for device, array in zip(devices, arrays, strict=True):
            result = ctypes.string_at(loaded.gf_emulator_host(device, array.nbytes), array.nbytes)
            array[...] = np.frombuffer(result, array.dtype).reshape(array.shape)
    finally:
        for device in devices:
            loaded.gf_emulator_free(device)


def _three(sizes: Sequence[int]) -> list[int]:
    return [*sizes, 1, 1][:3]


@cache
def _load(library: Path) -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(library))
    loaded.gf_emulator_allocate.argtypes, loaded.gf_emulator_allocate.restype = [ctypes.c_size_t], ctypes.c_uint64
    loaded.gf_emulator_free.argtypes = [ctypes.c_uint64]
    loaded.gf_emulator_host.argtypes = [ctypes.c_uint64, ctypes.c_size_t]
    loaded.gf_emulator_host.restype = ctypes.c_void_p
    loaded.gf_emulator_error.restype = ctypes.c_char_p
    return loaded


_folder = tempfile.TemporaryDirectory(prefix="gf_emulator_")


@cache
def _machine(compiler: str) -> tuple[str, ...]:
    """The emulator's own objects, compiled once a process and compiler."""
    objects = []
    for part in PARTS:
        target = Path(_folder.name, f"{Path(compiler).name}_{part}.o")
        _run([compiler, *FLAGS, "-Wall", "-Wextra", "-Werror", "-c", str(HERE / part), "-o", str(target)])
        objects.append(str(target))
    return tuple(objects)


def _run(command: Sequence[str]) -> None:
    if not shutil.which(command[0]):
        skip_for_want(f"'{command[0]}' is not installed; apt install {PACKAGES.get(command[0], 'g++')}")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr}")
