"""As much of an artifact as can be tuned."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from gfcompile.runtime.manifest import FORMAT
from gfcompile.tuning.tasks import KERNELS, Task, write_tasks


def write_folder(folder: Path, tasks: Sequence[Task], target: str = "native") -> Path:
    (folder / "graphs").mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps({"format": FORMAT, "target": target}))
    (folder / "graphs" / KERNELS).write_bytes(write_tasks(tasks))
    return folder
