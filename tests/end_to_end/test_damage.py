"""Flipped bits in a compiled network's artifact, as `tests/runtime/test_damage.py` has them in a smaller one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.end_to_end.conftest import Artifact, random_batch
from tests.runtime.trainer import run
from tests.runtime.variants import CHECKPOINT, assert_harmless, assert_trainer_refuses, draw_flips, prepare, try_each
from tests.selection import often

pytestmark = pytest.mark.slow
FLIPS = 20
FILES = ("libstep.so", "manifest.json", "weights.safetensors", "constants.safetensors", CHECKPOINT)


@pytest.fixture(scope="module")
def prepared(eval_artifact: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = eval_artifact.copy_to(tmp_path_factory.mktemp("damage"))
    x, y = random_batch((4, 3, 64, 64), seed=1)
    prepare(folder, x.numpy(), y.numpy())
    return folder


@pytest.fixture
def folder(prepared: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(prepared, tmp_path / prepared.name))


def test_python_refuses_every_flip(folder: Path) -> None:
    flips = [place for name in FILES for place in draw_flips(folder / name, FLIPS)]
    assert_harmless(try_each(folder, flips), len(flips))


@pytest.mark.parametrize("name", often(FILES, ["libstep.so", CHECKPOINT]))
def test_gf_train_refuses_every_flip(folder: Path, name: str) -> None:
    assert_trainer_refuses(folder, name, FLIPS)


def test_gf_train_looks_at_its_own_file(folder: Path) -> None:
    program = folder / "gf-train"
    program.write_bytes(program.read_bytes() + b"!")
    said = run(program, "--selftest", code=1)
    assert said.startswith(f"gf-train: '{program}': its content is not what was compiled (truncated or changed); ")
