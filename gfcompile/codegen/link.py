"""Compile the generated driver and the runtime, and link them with the kernels into one library."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from gfcompile.errors import UserError
from gfcompile.targets import Target

RUNTIME = Path(__file__).parent.parent / "runtime"
FLAGS = (
    "-std=gnu11",
    "-O2",
    "-fPIC",
    "-fvisibility=hidden",
    "-shared",
    "-pthread",
    "-Wl,--no-undefined",
    "-Wl,-z,noexecstack",
)


def link_library(
    driver: Path, objects: Sequence[Path], library: Path, target: Target, flags: Sequence[str] = ()
) -> None:
    """`cc` on everything at once: the C is small. `flags` come on top of those of every build."""
    command = [
        *target.link,
        *FLAGS,
        *flags,
        f"-I{RUNTIME}",
        *(str(path) for path in (driver, *sorted(RUNTIME.glob("*.c")), *objects)),
        "-lm",
        "-o",
        str(library),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise UserError(f"target '{target.name}': '{target.link[0]}' is not installed; install a C compiler") from error
    if done.returncode != 0:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        reason = next((line for line in said if "error" in line), (said or [f"exit code {done.returncode}"])[-1])
        raise UserError(f"target '{target.name}': '{target.link[0]}' could not link the step ({reason})")
