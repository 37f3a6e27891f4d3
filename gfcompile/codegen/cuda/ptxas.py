"""PTX to machine code by ptxas, and what it says of every kernel: registers, shared memory, spills."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from gfcompile.codegen.cuda import packages
from gfcompile.errors import ContractError
from gfcompile.targets.gpu import Gpu

if TYPE_CHECKING:  # it needs tvm, and reports are read without
    from gfcompile.codegen.cuda.launches import Launch

_ENTRY = re.compile(r"Compiling entry function '(?P<kernel>\w+)'")
_SPILLS = re.compile(r"(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (?P<registers>\d+) registers")
_SHARED = re.compile(r"(?P<bytes>\d+) bytes smem")
_REGISTER_UNIT = 256  # registers are given to warps in units of this
_SHARED_UNIT = 256
_RESERVED_FROM, _RESERVED = 80, 1024  # from sm_80 on the system takes shared memory of every block


@dataclass(frozen=True)
class Usage:
    """What one kernel takes of a multiprocessor, as ptxas counts it."""

    kernel: str
    registers: int
    shared_bytes: int
    spill_bytes: int
    threads: int
    blocks: int
    occupancy: float  # resident warps by the most there can be, if enough blocks are launched


def assemble(ptx: Path, cubin: Path, arch: str) -> dict[str, tuple[int, int, int]]:
    """Write the cubin; returns (registers, shared bytes, spilled bytes) by kernel."""
    command = [str(packages.find("ptxas")), f"-arch={arch}", "-v", str(ptx), "-o", str(cubin)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[:300])
        raise ContractError(f"ptxas refuses the generated kernels: {said}")
    return parse(done.stderr)


def parse(log: str) -> dict[str, tuple[int, int, int]]:
    """(registers, shared bytes, spilled bytes) by kernel out of what `ptxas -v` prints."""
    found: dict[str, tuple[int, int, int]] = {}
    kernel, spilled = "", 0
    for line in log.splitlines():
        if entry := _ENTRY.search(line):
            kernel, spilled = entry["kernel"], 0
        elif spills := _SPILLS.search(line):
            spilled = int(spills["stores"]) + int(spills["loads"])
        elif (registers := _REGISTERS.search(line)) and kernel:
            shared = _SHARED.search(line)
            found[kernel] = (int(registers["registers"]), int(shared["bytes"]) if shared else 0, spilled)
            kernel = ""
    return found


def make_usages(counted: Mapping[str, tuple[int, int, int]], launches: list[Launch], gpu: Gpu) -> list[Usage]:
    """What each launch takes of the GPU, from (registers, shared bytes, spilled bytes) by kernel."""
    usages = []
    for launch in launches:
        if launch.kernel not in counted:
            raise ContractError(f"ptxas says nothing of '{launch.kernel}'")
        registers, shared, spilled = counted[launch.kernel]
        threads = prod(launch.block)
        taken, there = registers * threads, gpu.registers_per_block
        if taken > there:
            raise ContractError(f"'{launch.kernel}' takes {taken} registers per block, {gpu.arch} has {there}")
        share = occupancy(registers, shared, threads, gpu)
        usages.append(Usage(launch.kernel, registers, shared, spilled, threads, prod(launch.grid), share))
    return usages


def occupancy(registers: int, shared_bytes: int, threads: int, gpu: Gpu) -> float:
    """Warps of this kernel that a multiprocessor can hold, by the most it can hold of any."""
    warps = -(-threads // gpu.warp)
    per_warp = -(-registers * gpu.warp // _REGISTER_UNIT) * _REGISTER_UNIT
    shared = shared_bytes + (_RESERVED if gpu.capability >= _RESERVED_FROM else 0)
    shared = -(-shared // _SHARED_UNIT) * _SHARED_UNIT
    blocks = min(
        gpu.blocks_per_multiprocessor,
        gpu.threads_per_multiprocessor // (warps * gpu.warp),
        gpu.registers_per_multiprocessor // (per_warp * warps),
        gpu.shared_bytes_per_multiprocessor // shared if shared else gpu.blocks_per_multiprocessor,
    )
    return blocks * warps / (gpu.threads_per_multiprocessor // gpu.warp)
