"""`Target`: what the compiler must know about a machine, made of its TOML file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gfcompile.errors import UserError
from gfcompile.settings.words import option
from gfcompile.targets.gpu import ARCHS, Gpu, make_gpu
from gfcompile.targets.host import check_cpu, fill_from_host
from gfcompile.targets.schema import ALIAS, OPTION, read_fields

_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Figure:
    """A number about a machine that somebody published."""

    value: float
    source: str


@dataclass(frozen=True)
class Machine:
    """What estimates are made from. A figure that nobody published is None."""

    peak_gflops: Figure | None = None  # float32, all cores
    bandwidth_gbs: Figure | None = None  # of the memory
    memory_gib: Figure | None = None
    watts: Figure | None = None  # under load


@dataclass(frozen=True)
class Target:
    """One machine. Of a CUDA target, what is said of the CPU holds for the one beside the GPU."""

    name: str
    description: str
    tvm: dict[str, Any]  # the argument of tvm.target.Target
    lanes: int  # float32 values in one vector register
    registers: int  # vector registers
    cores: int
    cache: int  # bytes of a core's second-level cache, or of its share of one
    link: list[str]  # the command that links for this machine; "ziglang" is the package of that name
    kind: str = "cpu"  # or cuda
    in_order: bool = False  # the CPU starts instructions in the order of the code: a load must be far from its use
    glibc: str | None = None  # the oldest C library that the artifact must run with; None: the build machine's
    libc: str = "glibc"  # musl: executables are static, and need no C library on the board
    emulator: tuple[str, ...] = ()  # the command that runs this machine's programs elsewhere, for tests
    gpu: Gpu | None = None
    machine: Machine = field(default_factory=Machine)

    @property
    def architecture(self) -> str:
        """Of the CPU: x86_64, aarch64."""
        return str(self.tvm["mtriple"]).partition("-")[0]

    @property
    def has_memory_operands(self) -> bool:
        """Whether a vector instruction may read an operand from memory, or every one is loaded into a register."""
        return self.architecture != "aarch64"


def list_targets() -> list[str]:
    """Names of the machines that ship with the compiler."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def find_target(name: str, arch: str | None = None) -> Target:
    """The shipped machine called `name`, or the one described by the .toml file at that path.

    `arch` is the GPU's, for a target that leaves it open.
    """
    path, fields = read_target(name)
    gpu = _read_gpu(path.stem, fields["gpu"], arch) if "gpu" in fields else None
    if arch is not None and (gpu is None or fields["gpu"]["arch"] != OPTION):
        raise UserError(
            f"{option('arch', arch)}: target '{path.stem}' has its own; {option('arch')} is for"
            f" {option('target', 'cuda')}"
        )
    fields = fill_from_host(fields)
    if name.endswith(".toml"):
        check_cpu(path, fields["tvm"])
    figures = {name: Figure(float(each["value"]), each["source"]) for name, each in fields.get("machine", {}).items()}
    return Target(
        name=path.stem,
        description=fields["description"],
        tvm={**fields["tvm"], "num-cores": fields["cores"]},
        lanes=fields["lanes"],
        registers=fields["registers"],
        cores=fields["cores"],
        cache=fields["cache_kib"] * 1024,
        link=list(fields["link"]),
        kind=fields.get("kind", "cpu"),
        in_order=fields.get("in_order", False),
        glibc=fields.get("glibc"),
        libc=fields.get("libc", "glibc"),
        emulator=tuple(fields.get("emulator", ())),
        gpu=gpu,
        machine=Machine(**figures),
    )


def read_target(name: str) -> tuple[Path, dict[str, Any]]:
    """A target's file and its checked content, an alias followed; nothing is asked of this machine yet."""
    if name.endswith(".toml"):
        path = Path(name)
        if not path.is_file():
            raise UserError(f"target file '{name}' does not exist; give a .toml file or one of: {_known()}")
    else:
        path = _FOLDER / f"{name}.toml"
        if name not in list_targets():
            raise UserError(f"unknown target '{name}'; use one of: {_known()}, or the path of a .toml file")
    fields = read_fields(path)
    if ALIAS not in fields:
        return path, fields
    if fields[ALIAS] not in list_targets() or fields[ALIAS] == path.stem:
        raise UserError(f"{path}: alias is '{fields[ALIAS]}'; give another of: {_known()}")
    return read_target(fields[ALIAS])


def _known() -> str:
    return ", ".join(list_targets())


def _read_gpu(name: str, fields: dict[str, Any], arch: str | None) -> Gpu:
    known = ", ".join(ARCHS)
    if fields["arch"] != OPTION:
        return make_gpu(fields["arch"], fields["multiprocessors"])
    if arch is None:
        raise UserError(f"target '{name}': which GPU is not said; add {option('arch')} with one of: {known}")
    if arch not in ARCHS:
        raise UserError(f"{option('arch', arch)}: not an architecture that is compiled for; use one of: {known}")
    return make_gpu(arch, fields["multiprocessors"])
