"""What a benchmark ran on: names and versions, and the measured limits that kernels are held against."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

EDGE = 1536  # of the matrices whose product gives the peak rate
VALUES = 1 << 26  # of the copy that gives the bandwidth: no cache holds it


@dataclass(frozen=True)
class Limits:
    """Of all cores together, measured."""

    flops: float
    bandwidth: float

    def seconds(self, flops: float, traffic: float) -> float:
        """The shortest time for this arithmetic and this many bytes, whichever takes longer."""
        return max(flops / self.flops, traffic / self.bandwidth)

    def best(self, other: Limits) -> Limits:
        """What the machine can do was at least what it did at either time."""
        return Limits(max(self.flops, other.flops), max(self.bandwidth, other.bandwidth))

    def __str__(self) -> str:
        return f"{self.flops / 1e9:.0f} GFLOP/s, {self.bandwidth / 1e9:.1f} GB/s"


def measure_limits() -> Limits:
    """Peak rate from a large matrix product, bandwidth from a large copy, bytes read and written; best of several."""
    torch.set_num_threads(os.cpu_count() or 1)
    a, b = torch.randn(EDGE, EDGE), torch.randn(EDGE, EDGE)
    source = torch.randn(VALUES)
    target = torch.empty_like(source)
    product, copy = _best(lambda: torch.mm(a, b)), _best(lambda: target.copy_(source))
    return Limits(2 * EDGE**3 / product, 2 * source.nbytes / copy)


def _best(run: Callable[[], Any], repeats: int = 12) -> float:
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def describe_machine() -> dict[str, Any]:
    versions = {}
    for package in ("gfcompile", "torch", "apache-tvm"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "versions": {"python": platform.python_version(), **versions},
    }


def machine_line(machine: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    return f"{machine['cpu']}, {machine['cores']} cores, {machine['date']}; {versions}."


def machine_lines(sections: Mapping[str, Any]) -> list[str]:
    """One line a machine and date, with the sections it holds for."""
    seen: dict[str, list[str]] = {}
    for name, section in sections.items():
        seen.setdefault(machine_line(section["machine"]), []).append(name)
    return [words if len(seen) == 1 else f"{', '.join(names)}: {words}" for words, names in seen.items()]


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model"))]
    return names[0] if names else platform.processor() or platform.machine()
