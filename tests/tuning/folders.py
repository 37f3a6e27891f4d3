"""As much of an artifact as can be tuned."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gfcompile.codegen.tuned.tasks import KERNELS, Task, write_tasks
from gfcompile.runtime.manifest import write_manifest
from tests.runtime.conftest import manifest


def write_folder(folder: Path, tasks: Sequence[Task], target: str = "native") -> Path:
    (folder / "graphs").mkdir(parents=True)
    write_target(folder, target)
    (folder / "graphs" / KERNELS).write_bytes(write_tasks(tasks))
    return folder


def write_target(folder: Path, target: str) -> None:
    """A manifest; the command reads nothing else of it."""
    write_manifest(folder, {**manifest(), "target": target})
