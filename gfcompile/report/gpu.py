"""What the kernels of a CUDA step take of a GPU: counted by ptxas, not measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gfcompile.report.units import in_bytes

if TYPE_CHECKING:
    from gfcompile.codegen.cuda.ptxas import Usage

COLUMNS = ("kernel", "blocks", "threads", "registers", "shared", "spilled", "occupancy")


def make_gpu(arch: str, usages: Sequence[Usage]) -> dict[str, Any]:
    """The part of report.json."""
    return {
        "numbers_are": "counted by ptxas; occupancy from these and the limits of the architecture",
        "arch": arch,
        "kernels": [dataclasses.asdict(usage) for usage in usages],
    }


def gpu_line(gpu: dict[str, Any]) -> str:
    """One sentence for the terminal."""
    kernels = gpu["kernels"]
    spilled = [row["kernel"] for row in kernels if row["spill_bytes"]]
    spills = f"{len(spilled)} spill registers: {', '.join(spilled)}" if spilled else "none spills registers"
    registers = max(row["registers"] for row in kernels)
    shared = in_bytes(max(row["shared_bytes"] for row in kernels))
    lowest = min(row["occupancy"] for row in kernels)
    return (
        f"GPU {gpu['arch']}: {len(kernels)} kernels, {spills}; at most {registers} registers a thread and {shared} of"
        f" shared memory a block; occupancy {100 * lowest:.0f} % or more (counted by ptxas, not measured)"
    )


def gpu_rows(gpu: dict[str, Any]) -> list[tuple[str, ...]]:
    """One row a kernel."""
    return [
        (
            row["kernel"].removeprefix("gf_kernel_").removesuffix("_kernel"),
            str(row["blocks"]),
            str(row["threads"]),
            str(row["registers"]),
            in_bytes(row["shared_bytes"]),
            in_bytes(row["spill_bytes"]),
            f"{100 * row['occupancy']:.0f} %",
        )
        for row in gpu["kernels"]
    ]
