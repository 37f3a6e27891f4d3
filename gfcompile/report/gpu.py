"""What the kernels of a CUDA step take of a GPU: counted by ptxas, not measured."""

from __future__ import annotations

from gfcompile.report.machine_schema import GpuPart
from gfcompile.report.units import in_bytes

COLUMNS = ("kernel", "blocks", "threads", "registers", "shared", "spilled", "occupancy")


def gpu_line(gpu: GpuPart) -> str:
    """One sentence for the terminal."""
    kernels = gpu.kernels
    spilled = [row.kernel for row in kernels if row.spill_bytes]
    spills = f"{len(spilled)} spill registers: {', '.join(spilled)}" if spilled else "none spills registers"
    registers = max(row.registers for row in kernels)
    shared = in_bytes(max(row.shared_bytes for row in kernels))
    lowest = min(row.occupancy for row in kernels)
    return (
        f"GPU {gpu.arch}: {len(kernels)} kernels, {spills}; at most {registers} registers per thread and {shared} of"
        f" shared memory per block; occupancy {100 * lowest:.0f} % or more (counted by ptxas, not measured)"
    )


def gpu_rows(gpu: GpuPart) -> list[tuple[str, ...]]:
    """One row per kernel."""
    return [
        (
            row.kernel.removeprefix("gf_kernel_").removesuffix("_kernel"),
            str(row.blocks),
            str(row.threads),
            str(row.registers),
            in_bytes(row.shared_bytes),
            in_bytes(row.spill_bytes),
            f"{100 * row.occupancy:.0f} %",
        )
        for row in gpu.kernels
    ]
