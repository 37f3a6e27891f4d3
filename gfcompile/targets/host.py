"""What a target file leaves to the machine that the compiler runs on: every "host" filled in."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gfcompile.errors import UserError

if TYPE_CHECKING:
    from gfcompile.targets.spec import Target

HOST = "host"  # in a target file: as this machine has it
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_COMMON_CACHE_KIB = 512
_VECTOR_UNITS = (  # LLVM feature, float32 lanes, vector registers: widest first
    ("avx512f", 16, 32),
    ("avx2", 8, 16),
    ("neon", 4, 32),
    ("sse", 4, 16),
)
_INSTRUCTION_SETS = {  # LLVM features whose code stops a CPU that lacks them; others are tuning, or unused by kernels
    *("sse4.2", "avx", "avx2", "fma", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
    *("neon", "dotprod", "fullfp16", "lse"),
}


def fill_from_host(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields with every "host" replaced by what LLVM and Linux say of this machine."""
    if "host" not in [*fields["tvm"].values(), *(value for value in fields.values() if isinstance(value, str))]:
        return fields
    import tvm  # seconds to import, and only this machine needs it
    from tvm.target import codegen

    host = {"mtriple": codegen.llvm_get_system_triple(), "mcpu": codegen.llvm_get_system_cpu()}
    options = {key: host.get(key, value) if value == "host" else value for key, value in fields["tvm"].items()}
    features = codegen.llvm_get_cpu_features(tvm.target.Target(dict(options)))
    lanes, registers = next(((lanes, count) for unit, lanes, count in _VECTOR_UNITS if unit in features), (4, 16))
    found = {
        "lanes": lanes,
        "registers": registers,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "cache_kib": host_cache_kib(_CACHES),
    }
    return {**fields, **{name: value for name, value in found.items() if fields[name] == "host"}, "tvm": options}


def host_cache_kib(caches: Path) -> int:
    """A core's share of the second-level cache, as Linux tells; a common size where it does not."""
    for cache in sorted(caches.glob("index*")):
        level, size, cores = ((cache / name).read_text().strip() for name in ("level", "size", "shared_cpu_list"))
        if level == "2" and size.endswith("K"):
            ranges = [[int(core) for core in part.split("-")] for part in cores.split(",")]
            return int(size[:-1]) // sum(span[-1] - span[0] + 1 for span in ranges)
    return _COMMON_CACHE_KIB


def explain_foreign(target: Target) -> str | None:
    """Why what is compiled for the target cannot run on this machine; None if it can."""
    here = platform.machine()
    if target.architecture != here:
        return f"it is for {target.architecture}, this machine is {here}"
    import tvm
    from tvm.target import codegen

    host = {"kind": "llvm", "mtriple": target.tvm["mtriple"], "mcpu": codegen.llvm_get_system_cpu()}
    wanted, present = (
        set(codegen.llvm_get_cpu_features(tvm.target.Target(options))) & _INSTRUCTION_SETS
        for options in (target.tvm, host)
    )
    missing = sorted(wanted - present)
    return f"this machine's CPU lacks {', '.join(missing)}" if missing else None


def check_cpu(path: Path, options: dict[str, Any]) -> None:
    """LLVM would compile for a generic CPU in place of one that it does not know."""
    import tvm
    from tvm.target import codegen

    asked = {key: value for key, value in options.items() if key not in ("mcpu", "mattr")}
    known = sorted(map(str, codegen.llvm_get_cpu_archlist(tvm.target.Target(asked))))
    if options["mcpu"] not in known:
        raise UserError(f"{path}: tvm.mcpu is '{options['mcpu']}'; give one of: {', '.join(known)}")
