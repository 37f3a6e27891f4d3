"""`Target`: what the compiler must know about a machine, and the reader of its TOML file."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gfcompile.errors import UserError

_FOLDER = Path(__file__).parent
_FIELDS = {"description", "lanes", "registers", "cores", "cache_kib", "link", "tvm"}
_NUMBERS = ("lanes", "registers", "cores", "cache_kib")
_HOST_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_COMMON_CACHE_KIB = 512
_VECTOR_UNITS = (  # LLVM feature, float32 lanes, vector registers: widest first
    ("avx512f", 16, 32),
    ("avx2", 8, 16),
    ("neon", 4, 32),
    ("sse", 4, 16),
)


@dataclass(frozen=True)
class Target:
    """One machine."""

    name: str
    description: str
    tvm: dict[str, Any]  # the argument of tvm.target.Target
    lanes: int  # float32 values in one vector register
    registers: int  # vector registers
    cores: int
    cache: int  # bytes of a core's second-level cache, or of its share of one
    link: list[str]  # the command that links objects for this machine


def list_targets() -> list[str]:
    """Names of the machines that ship with the compiler."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def find_target(name: str) -> Target:
    """The shipped machine called `name`, or the one described by the .toml file at that path."""
    if name.endswith(".toml"):
        path = Path(name)
        if not path.is_file():
            raise UserError(f"target file '{name}' does not exist; give a .toml file or one of: {_known()}")
    else:
        path = _FOLDER / f"{name}.toml"
        if name not in list_targets():
            raise UserError(f"unknown target '{name}'; use one of: {_known()}, or the path of a .toml file")
    return _read(path)


def _known() -> str:
    return ", ".join(list_targets())


def _read(path: Path) -> Target:
    try:
        fields = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: not a valid TOML file ({error}); see {_FOLDER / 'x86-64-v3.toml'}") from error
    missing, extra = sorted(_FIELDS - fields.keys()), sorted(fields.keys() - _FIELDS)
    if missing or extra:
        wrong = [f"lacks '{field}'" for field in missing] + [f"has the unknown field '{field}'" for field in extra]
        raise UserError(f"{path}: {', '.join(wrong)}; a target has the fields {', '.join(sorted(_FIELDS))}")
    _fill_from_host(fields)
    for field in _NUMBERS:
        if not isinstance(fields[field], int) or fields[field] < 1:
            raise UserError(f"{path}: {field} is '{fields[field]}'; give a whole number of at least 1, or \"host\"")
    return Target(
        name=path.stem,
        description=fields["description"],
        tvm={**fields["tvm"], "num-cores": fields["cores"]},
        lanes=fields["lanes"],
        registers=fields["registers"],
        cores=fields["cores"],
        cache=fields["cache_kib"] * 1024,
        link=list(fields["link"]),
    )


def _fill_from_host(fields: dict[str, Any]) -> None:
    """Replace every "host" by what LLVM says of this machine."""
    if "host" not in (*fields["tvm"].values(), *(fields[field] for field in _NUMBERS)):
        return
    import tvm  # seconds to import, and only the native machine needs it
    from tvm.target import codegen

    host = {"mtriple": codegen.llvm_get_system_triple(), "mcpu": codegen.llvm_get_system_cpu()}
    fields["tvm"] = {key: host.get(key, value) if value == "host" else value for key, value in fields["tvm"].items()}
    features = codegen.llvm_get_cpu_features(tvm.target.Target(dict(fields["tvm"])))
    lanes, registers = next(((lanes, count) for unit, lanes, count in _VECTOR_UNITS if unit in features), (4, 16))
    if fields["lanes"] == "host":
        fields["lanes"] = lanes
    if fields["registers"] == "host":
        fields["registers"] = registers
    if fields["cores"] == "host":
        fields["cores"] = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if fields["cache_kib"] == "host":
        fields["cache_kib"] = host_cache_kib(_HOST_CACHES)


def host_cache_kib(caches: Path) -> int:
    """A core's share of the second-level cache, as Linux tells; a common size where it does not."""
    for cache in sorted(caches.glob("index*")):
        level, size, cores = ((cache / name).read_text().strip() for name in ("level", "size", "shared_cpu_list"))
        if level == "2" and size.endswith("K"):
            ranges = [[int(core) for core in part.split("-")] for part in cores.split(",")]
            return int(size[:-1]) // sum(span[-1] - span[0] + 1 for span in ranges)
    return _COMMON_CACHE_KIB
