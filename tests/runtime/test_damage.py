"""One flipped bit in any file of an artifact, or in a checkpoint: refused in one line, by Python and by gf-train.

Cards and cables do this. `tests/end_to_end/test_damage.py` has the same on a compiled network.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from gfcompile.runtime.manifest import AGAIN
from gfcompile.runtime.tensorfile import sha256
from tests.manifests import edit_manifest, list_anew, manifest_of
from tests.selection import often

from .conftest import Build
from .trainer import run
from .variants import CHECKPOINT, assert_harmless, assert_trainer_refuses, draw_flips, prepare, replace, try_each

FLIPS = 40
MANY = 200  # for `make coverage`
FILES = ("libstep.so", "manifest.json", "weights.safetensors", "constants.safetensors", CHECKPOINT)
each_file = pytest.mark.parametrize(
    ("name", "flips"),
    often([(name, flips) for name in FILES for flips in (FLIPS, MANY)], [(name, FLIPS) for name in FILES]),
)


@pytest.fixture
def whole(build: Build, batch: tuple[np.ndarray, np.ndarray]) -> Path:
    folder = build()
    prepare(folder, *batch)
    return folder


@pytest.mark.slow
@each_file
def test_python_refuses_every_flip(whole: Path, name: str, flips: int) -> None:
    assert_harmless(try_each(whole, draw_flips(whole / name, flips)), flips)


def test_flips_of_a_manifest_without_a_checksum(whole: Path) -> None:
    """Of the format before: most are refused, and what is not changes nothing that is computed."""
    old = {key: value for key, value in manifest_of(whole).items() if key != "sha256"}
    (whole / "manifest.json").write_text(json.dumps({**old, "format": 1}))
    assert_harmless(try_each(whole, draw_flips(whole / "manifest.json", FLIPS)), FLIPS // 2)


@pytest.mark.slow
@each_file
def test_gf_train_refuses_every_flip(whole: Path, trainer: Path, name: str, flips: int) -> None:
    shutil.copy(trainer, whole)
    assert_trainer_refuses(whole, name, flips)


def test_what_gf_train_says_of_its_files(whole: Path, trainer: Path) -> None:
    """It looks at the manifest, at itself if that is listed, and at the library, which it then loads."""
    program = Path(shutil.copy(trainer, whole))
    library = whole / "libstep.so"
    compiled = library.read_bytes()

    def said() -> str:
        return run(program, "--version", code=1).removeprefix("gf-train: ")

    list_anew(whole, "gf-train")
    assert run(program, "--version").startswith("gf-train of linear_step, ")
    program.write_bytes(program.read_bytes() + b"!")
    changed = "its content is not what was compiled (truncated or changed)"
    assert said() == f"'{program}': {changed}; {AGAIN}\n"
    program.unlink()
    shutil.copy(trainer, whole)
    edit_manifest(whole, files={"libstep.so": sha256(compiled)})
    replace(library, compiled[:-1])
    assert said() == f"'{library}': {changed}; {AGAIN}\n"
    replace(library, b"not a library")
    list_anew(whole, "libstep.so")
    assert said().startswith(f"'{library}': cannot be loaded: {library}: ")
    assert said().endswith("; was it compiled for another target?\n")
    command = ["gcc", "-shared", "-x", "c", "/dev/null", "-o", str(library)]
    subprocess.run(command, check=True)
    list_anew(whole, "libstep.so")
    assert said() == f"'{library}': has no function gf_build_id; {AGAIN}\n"
    library.unlink()
    assert said() == f"'{library}': cannot be read: No such file or directory; {AGAIN}\n"
    edit_manifest(whole, format=3)
    assert said() == (
        f"'{whole}/manifest.json': has another format, this runtime reads formats 1 and 2; recompile the artifact\n"
    )
    (whole / "manifest.json").unlink()
    assert said() == f"'{whole}/manifest.json': cannot be read: No such file or directory; {AGAIN}\n"
