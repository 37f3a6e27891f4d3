"""A power cut leaves a whole checkpoint: its bytes are on the disk before it gets its name, and the name after that.

No kill shows a missing sync, since the kernel lives on; so the calls themselves are watched.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Build

HERE = Path(__file__).parent
SAVE = {
    "c": """
import ctypes, sys
from pathlib import Path
from tests.runtime.c_interface import C, Progress
c = C(Path(sys.argv[1]) / "libstep.so")
assert not c.gf_step_save(c.open(sys.argv[1]), sys.argv[2].encode(), ctypes.byref(Progress(lr=0.05))), c.error()
""",
    "python": """
import sys
from gfcompile.runtime.step import Step
Step.load(sys.argv[1]).save_checkpoint(sys.argv[2])
""",
}


@pytest.fixture(scope="module")
def watch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("watch") / "watch_files.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", path, HERE / "watch_files.c", "-ldl"], check=True)
    return path


@pytest.mark.parametrize("language", SAVE)
def test_bytes_then_name_then_folder(build: Build, watch: Path, tmp_path: Path, language: str) -> None:
    folder = tmp_path.resolve() / "checkpoints"
    folder.mkdir()
    watched = {**os.environ, "LD_PRELOAD": str(watch), "WATCHED": str(tmp_path / "watched")}
    command = [sys.executable, "-c", SAVE[language], build(), folder / "ckpt"]
    subprocess.run(command, cwd=HERE.parents[1], env=watched, check=True)
    assert (tmp_path / "watched").read_text().splitlines() == [
        f"sync {folder}/.ckpt.tmp",
        f"name {folder}/ckpt",
        f"sync {folder}",
    ]
