"""What runs a board's programs here."""

from __future__ import annotations

import shutil
from pathlib import Path

from gfcompile.targets import find_target
from tests.artifacts import builds
from tests.missing import skip_for_want

__all__ = ["builds"]  # a fixture

SYSROOT = Path("/usr/aarch64-linux-gnu")


def need(program: str, package: str) -> str:
    """The program's path; without it the test is skipped."""
    found = shutil.which(program)
    if found is None:
        skip_for_want(f"{program} is not installed; apt install {package}")
    return found


def emulator(board: str) -> list[str]:
    """The command before a program of the board, with the board's own CPU."""
    program, *options = find_target(board).emulator
    need(program, "qemu-user-static")
    if not (SYSROOT / "lib").is_dir():
        skip_for_want(f"{SYSROOT} does not exist; apt install libc6-arm64-cross")
    return [program, *options, "-L", str(SYSROOT)]
