"""Compile the generated driver and the runtime, and link them with the kernels into a library or a program."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from gfcompile.codegen.binary_check import check_glibc
from gfcompile.codegen.compiled import compile_once
from gfcompile.errors import UserError
from gfcompile.settings.schema import Machine
from gfcompile.settings.words import option
from gfcompile.targets import Target, read_target
from gfcompile.targets.host import HOST

RUNTIME = Path(__file__).parent.parent / "runtime"
FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden", "-pthread")
LINKING = ("-Wl,--no-undefined", "-Wl,-z,noexecstack")
_LINKER_FLAGS = ("-Wl,", "-L", "-l", "-shared")
_KNOWN_FLAGS = {"-DGF_FEATURES", "-DGF_STATIC", "-g"}
# What gf-train looks at the library's file with, before it is loaded.
TRAINER_SHARES = ("gf_json.c", "gf_manifest.c", "gf_sha256.c")
# The runtime's C is in every library, but for what only one kind of machine has.
ONLY = {"gf_device_cpu.c": "cpu", "gf_device_cuda.c": "cuda"}
FEATURES_FLAGS = ("-DGF_FEATURES",)  # what a prefix cache adds
DEBUG_FLAGS = ("-g",)  # a debugger then knows the lines of the driver and the runtime
ZIG = "ziglang"  # the package on PyPI: a C compiler for every machine, with every version of glibc
LINKERS = ("zig", "gcc")
LIBCS = ("glibc", "musl")


def runtime_sources(kind: str) -> list[Path]:
    """The runtime's C for one kind of target."""
    return [path for path in sorted(RUNTIME.glob("*.c")) if ONLY.get(path.name, kind) == kind]


def trainer_sources() -> list[Path]:
    """The C of a gf-train that loads its library."""
    return [*trainer_program(), *(RUNTIME / name for name in TRAINER_SHARES)]


def trainer_program() -> list[Path]:
    """The C of gf-train alone."""
    return sorted((RUNTIME / "train").glob("*.c"))


def choose_linker(target: Target, linker: str | None, libc: str | None = None) -> Target:
    """The target as the command line wants it linked: `linker` zig or gcc, `libc` glibc or musl for programs."""
    for name, value, known in (("linker", linker, LINKERS), ("libc", libc, LIBCS)):
        if value is not None and value not in known:
            raise UserError(f"{option(name, value)}: is not known; use {' or '.join(known)}")
    if linker == "zig":
        target = replace(target, link=[ZIG, "cc"])
    elif linker == "gcc":
        # It binds to the newest symbols of its own glibc: no floor can be promised; what came out is printed.
        is_here = target.architecture == platform.machine()
        target = replace(target, link=["gcc" if is_here else f"{target.architecture}-linux-gnu-gcc"], glibc=None)
    if libc is not None:
        target = replace(target, libc=libc)
    if target.libc == "musl" and target.kind == "cuda":
        raise UserError(
            f"{option('libc', 'musl')}: target '{target.name}' loads the CUDA driver, which a static program cannot"
        )
    if target.libc == "musl" and target.link[0] != ZIG:
        raise UserError(f"{option('libc', 'musl')}: '{target.link[0]}' brings no musl; use {option('linker', 'zig')}")
    return target


def link_library(
    driver: Path, objects: Sequence[Path], library: Path, target: Target, flags: Sequence[str] = ()
) -> None:
    """Everything at once: the C is small. `flags` come on top of those of every build.

    A library is loaded by a program that has its C library already: it uses glibc even where programs are static.
    """
    link_shared([driver, *runtime_sources(target.kind)], objects, library, target, flags)


def link_shared(
    sources: Sequence[Path], objects: Sequence[Path], library: Path, target: Target, flags: Sequence[str] = ()
) -> None:
    """A library of C sources and objects, of the runtime just what is named."""
    _link([*sources, *objects], library, target, ["-shared", *flags], static=False)
    check_glibc(library, target)


def link_executable(
    sources: Sequence[Path], objects: Sequence[Path], output: Path, target: Target, flags: Sequence[str] = ()
) -> None:
    """A program of C sources and objects; static where the target asks for musl."""
    _link([*sources, *objects], output, target, flags, static=target.libc == "musl")
    check_glibc(output, target)


def runtime_flags(cache_prefix: bool, debug: bool) -> tuple[str, ...]:
    """What the runtime's C is compiled with for a step, beside what holds for all."""
    return (*(FEATURES_FLAGS if cache_prefix else ()), *(DEBUG_FLAGS if debug else ()))


def compile_runtime(target: Target, flags: Sequence[str] = ()) -> None:
    """What every library and program for this target holds, into the user's cache: linking finds it there."""
    static = target.libc == "musl"
    for sources, of_program in ((runtime_sources(target.kind), False), (trainer_sources(), static)):
        _compiled(sources, _compiler(target, of_program), [*flags, *(["-DGF_STATIC"] if of_program else [])])


def find_linked(settings: Machine) -> Target:
    """What linking needs to know of the target, from its file alone: asking LLVM about this machine takes seconds."""
    fields = read_target(settings.target)[1]
    triple = fields["tvm"]["mtriple"]
    machine = {"mtriple": platform.machine() if triple == HOST else triple}
    kind, libc, glibc = fields.get("kind", "cpu"), fields.get("libc", "glibc"), fields.get("glibc")
    found = Target("", "", machine, 1, 1, 1, 1, list(fields["link"]), kind=kind, libc=libc, glibc=glibc)
    return choose_linker(found, settings.linker, settings.libc)


def linker_words(target: Target) -> str:
    """For the progress line: why the first link takes long."""
    if target.link[0] != ZIG:
        return "linking"
    return "linking (the first time, zig prepares the C library of such machines)"


def find_missing(target: Target) -> str | None:
    """What to install before this target can be linked; None if it is there."""
    command = target.link[0]
    if command == ZIG:
        return None if importlib.util.find_spec(ZIG) else f"pip install {ZIG}"
    if shutil.which(command):
        return None
    if command.endswith("-linux-gnu-gcc"):
        return f"apt install gcc-{target.architecture.replace('_', '-')}-linux-gnu"
    return "install a C compiler"


def require_linker(target: Target) -> None:
    """Refuse early what could not be linked after minutes of compiling."""
    missing = find_missing(target)
    if missing is not None:
        raise UserError(f"target '{target.name}': '{target.link[0]}' is not installed; {missing}")


def _link(inputs: Sequence[Path], output: Path, target: Target, flags: Sequence[str], static: bool) -> None:
    require_linker(target)
    compiler = _compiler(target, static)
    try:
        command = [*compiler, *FLAGS, *LINKING, *flags, f"-I{RUNTIME}"]
        command += [*map(str, _compiled(inputs, compiler, flags)), "-lm", "-o", str(output)]
        subprocess.run(command, capture_output=True, text=True, check=True)
    except subprocess.CalledProcessError as error:
        said = [line.strip() for line in error.stderr.splitlines() if line.strip()]
        reason = next((line for line in said if "error" in line), (said or [f"exit code {error.returncode}"])[-1])
        remedy = "; set ZIG_GLOBAL_CACHE_DIR to a folder that can be written" if "cache dir" in reason else ""
        problem = f"'{target.link[0]}' could not link the step ({reason}){remedy}"
        raise UserError(f"target '{target.name}': {problem}") from error


def _compiled(inputs: Sequence[Path], compiler: Sequence[str], flags: Sequence[str]) -> list[Path]:
    """The inputs, the runtime's C replaced by its objects. Options that we do not give ourselves compile it anew."""
    own = [path for path in inputs if path.suffix == ".c" and RUNTIME in path.parents]
    rest = [path for path in inputs if path not in own]
    for_c = [flag for flag in flags if not flag.startswith(_LINKER_FLAGS)]
    if not own or not set(for_c) <= _KNOWN_FLAGS:
        return list(inputs)
    command = [*compiler, *FLAGS, *for_c, f"-I{RUNTIME}"]
    try:
        return [*rest, *compile_once(command, _identity(tuple(compiler)), own, sorted(RUNTIME.rglob("*.h")))]
    except (OSError, subprocess.CalledProcessError):
        return list(inputs)  # no cache can be written, perhaps for a full disk: all is compiled again, or fails again


@cache
def _identity(compiler: tuple[str, ...]) -> str:
    """Which compiler it is, with its version: another one's objects are not used."""
    if ZIG in compiler:
        return importlib.metadata.version(ZIG)
    return subprocess.run([compiler[0], "--version"], capture_output=True, text=True, check=True).stdout


def _compiler(target: Target, static: bool) -> list[str]:
    if target.link[0] != ZIG:
        return list(target.link)
    libc = "musl" if static else f"gnu.{target.glibc}" if target.glibc else "gnu"
    machine = ["-target", f"{target.architecture}-linux-{libc}", *(["-static"] if static else [])]
    return [sys.executable, "-P", "-m", ZIG, *target.link[1:], *machine]
