"""What a trial holds for: this kernel, on this machine, with these versions; texts that are equal in every process."""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm_ffi import structural_hash

from gfcompile.codegen.kernels.open_convolution import read_open
from gfcompile.codegen.schedules.choices import TEMPLATES
from gfcompile.targets import Target


def kernel_hash(function: tirx.PrimFunc) -> str:
    """Of the unscheduled kernel: equal for those that do the same, whatever their names (as `scheduling.kernel_key`).

    64 bits: two kernels that shared them would share decisions, which are never wrong, only slow or no option.
    An open convolution is known by its shape.
    """
    convolution = read_open(function)
    if convolution is not None:
        return convolution.key
    return f"{structural_hash(function.without_attr('global_symbol')) & 0xFFFF_FFFF_FFFF_FFFF:016x}"


def target_key(target: Target) -> str:
    """All that schedules and code depend on. Targets of other names that are the same machine have the same key."""
    parts = [str(target.tvm["mcpu"]), target.architecture, *sorted(target.tvm.get("mattr", []))]
    parts += [f"lanes {target.lanes}", f"registers {target.registers}", f"cores {target.cores}"]
    parts.append(f"cache {target.cache // 1024}K")
    if target.in_order:
        parts.append("in order")
    if target.gpu is not None:  # the rest of it follows from its architecture
        parts.append(f"gpu {target.gpu.arch} multiprocessors {target.gpu.multiprocessors}")
    return " ".join(parts)


def versions() -> str:
    """Of all that decides what a decision does and how fast it is."""
    return f"tvm {tvm.__version__}, templates {TEMPLATES}"
