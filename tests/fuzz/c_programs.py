"""The harnesses in C: each a program of libFuzzer with AddressSanitizer and UndefinedBehaviorSanitizer."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from gfcompile.codegen.compiled import compile_once
from gfcompile.codegen.link import RUNTIME, runtime_sources
from tests.fuzz.harness import HERE, STATE, Harness
from tests.fuzz.libfuzzer import Engine

CLANG = "clang"
INSTALL = "clang or its sanitizers are not installed; the C harnesses need: apt install clang libclang-rt-14-dev"
HARNESSES = HERE / "c"
PROGRAM = HERE.parent / "runtime" / "linear_program.c"
SANITIZE = ("address", "undefined", "float-cast-overflow")
FLAGS = (
    *("-std=gnu11", "-O1", "-g", "-fno-omit-frame-pointer", "-Wall", "-Wextra", "-Werror", "-pthread"),
    "-fno-sanitize-recover=all",
    *(f"-I{folder}" for folder in (RUNTIME, RUNTIME / "train", RUNTIME / "trial", HARNESSES)),
    '-DBUILD_ID="b0"',
    '-DGF_SYSTEM_FOLDER="."',
)
MAPPED = ("mmap", "munmap")
ALLOCATED = ("malloc", "calloc", "realloc", "aligned_alloc", "strndup", "free")
ENDING = (*MAPPED, *ALLOCATED, "open", "close", "exit")  # of programs that may end anywhere
RSS_MEGABYTES = 1024


@dataclass(frozen=True)
class Program:
    """What a harness is linked with: product sources, each compiled with the seams of its group (see c/fuzz.h).

    `has_step`: with the runtime and the step of tests/runtime; else the harness itself stands for a step.
    """

    name: str
    train: tuple[str, ...] = ()
    trial: tuple[str, ...] = ()
    has_step: bool = True

    def groups(self) -> list[tuple[list[Path], tuple[str, ...]]]:
        runtime = [PROGRAM, HARNESSES / "steps.c", *runtime_sources("cpu")]
        found: list[tuple[list[Path], tuple[str, ...]]] = [
            ([HARNESSES / "fuzz.c", HARNESSES / "seams.c"], ()),
            (runtime if self.has_step else [], MAPPED),
            ([RUNTIME / "train" / name for name in self.train], ENDING),
            ([RUNTIME / "trial" / name for name in self.trial], ()),
        ]
        return [(sources, seams) for sources, seams in found if sources]


# The loop and what it calls; not the program around it.
LOOP = tuple(path.name for path in sorted((RUNTIME / "train").glob("*.c")) if path.stem not in ("gf_train", "library"))
PROGRAMS = {
    "json": Program("json"),
    "tensorfile": Program("tensorfile"),
    "artifact": Program("artifact"),
    "checkpoint": Program("checkpoint"),
    "arrays": Program("arrays", train=("arrays.c", "samples.c"), has_step=False),
    "options": Program("options", train=("arrays.c", "options.c"), has_step=False),
    "training": Program("training", train=LOOP),
    "trial": Program("trial", trial=("gf_trial_json.c", "gf_trial_values.c", "gf_trial_rpc.c")),
}


def harnesses() -> list[Harness]:
    return [
        Harness(
            f"c-{name}", "C", Engine(partial(_command, program), (name,), RSS_MEGABYTES).run, find_missing,
            partial(build, program),
        )
        for name, program in PROGRAMS.items()
    ]  # fmt: skip


@cache
def find_missing() -> str | None:
    """None where a program of libFuzzer can be linked."""
    if shutil.which(CLANG) is None:
        return INSTALL
    source = b"int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n) { return d && n > 1000; }"
    command = [CLANG, "-fsanitize=fuzzer,address,undefined", "-x", "c", "-", "-o", "/dev/null"]
    return INSTALL if subprocess.run(command, input=source, capture_output=True, check=False).returncode else None


def _command(program: Program) -> list[str]:
    return [str(build(program))]


def build(program: Program, planted: Mapping[Path, Path] | None = None) -> Path:
    """The program below .fuzz, linked again when a source has changed. `planted`: files in place of some sources."""
    objects: list[Path] = []
    for sources, seams in program.groups():
        made = dict(zip(sources, _compile(sources, seams), strict=True))
        for source, other in (planted or {}).items():
            if source in made:
                made[source] = _compile([other], seams)[0]
        objects += made.values()
    harness = HARNESSES / f"{program.name}.c"
    command = [CLANG, *FLAGS, f"-fsanitize=fuzzer,{','.join(SANITIZE)}", str(harness), *map(str, objects), "-lm"]
    digest = hashlib.sha256("\0".join([_identity(), *command]).encode() + harness.read_bytes())
    digest.update((HARNESSES / "fuzz.h").read_bytes())
    built = STATE / "build" / digest.hexdigest()[:16] / program.name
    if not built.exists():
        built.parent.mkdir(parents=True, exist_ok=True)
        unfinished = built.with_suffix(f".{os.getpid()}")  # tests in several processes may build it at once
        subprocess.run([*command, "-o", str(unfinished)], check=True)
        unfinished.rename(built)
    return built


def _compile(sources: list[Path], seams: tuple[str, ...]) -> list[Path]:
    """Their objects; groups that several harnesses share are compiled once."""
    options = [f"-D{name}=fuzz_{name}" for name in seams]
    if seams is ENDING:
        options += ["-include", str(HARNESSES / "variables.h")]
    command = [CLANG, *FLAGS, f"-fsanitize=fuzzer-no-link,{','.join(SANITIZE)}", *options]
    headers = sorted([*RUNTIME.rglob("*.h"), *HARNESSES.glob("*.h")])
    try:
        return compile_once(command, _identity(), sources, headers)
    except subprocess.CalledProcessError as error:
        raise RuntimeError(f"a harness does not compile:\n{error.stderr}") from error


@cache
def _identity() -> str:
    return subprocess.run([CLANG, "--version"], capture_output=True, text=True, check=True).stdout
