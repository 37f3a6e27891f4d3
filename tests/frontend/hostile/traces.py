"""What a hostile file leaves behind if it gets its way."""

from __future__ import annotations

import subprocess
from pathlib import Path


def touch(folder: Path) -> str:
    """A shell command that leaves the file `ran`."""
    return f"touch {folder}/ran"


def compile_library(folder: Path) -> None:
    """`ran.so`, which leaves the same file when it is loaded."""
    body = f'{{ creat("{folder}/ran", 0666); }}'
    source = f"#include <fcntl.h>\n__attribute__((constructor)) static void run(void) {body}\n"
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(folder / "ran.so")]
    subprocess.run(command, input=source.encode(), check=True)
