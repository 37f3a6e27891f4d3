"""What somebody has put under the name of a temporary file is never followed, truncated or written through."""

from __future__ import annotations

import ctypes
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gfcompile.runtime import tensorfile
from gfcompile.runtime.errors import StepError
from gfcompile.runtime.step import Step

from .c_interface import C, Progress
from .conftest import Build

Save = Callable[[Step, Path], str]
FILE = 2


def save_in_python(step: Step, path: Path) -> str:
    try:
        step.save_checkpoint(path)
    except StepError as error:
        return str(error).removeprefix("save_checkpoint: ")
    return ""


def save_in_c(step: Step, path: Path) -> str:
    c, progress = C(step._folder / "libstep.so"), Progress(lr=0.05)
    code = c.gf_step_save(ctypes.c_void_p(step._handle), str(path).encode(), ctypes.byref(progress))
    assert code in (0, FILE)
    return c.error().removeprefix("gf_step_save: ")


def plant_link(place: Path, victim: Path) -> None:
    place.symlink_to(victim)


def plant_dangling_link(place: Path, victim: Path) -> None:
    place.symlink_to(victim.with_name("new"))


def plant_hard_link(place: Path, victim: Path) -> None:
    place.hardlink_to(victim)


def plant_fifo(place: Path, victim: Path) -> None:
    os.mkfifo(place)


def plant_what_a_kill_left(place: Path, victim: Path) -> None:
    place.write_text("half a checkpoint")


@pytest.mark.parametrize("save", [save_in_python, save_in_c])
@pytest.mark.parametrize("name", [".ckpt.tmp", "ckpt", "ckpt.previous"])
@pytest.mark.parametrize(
    "plant", [plant_link, plant_dangling_link, plant_hard_link, plant_fifo, plant_what_a_kill_left]
)
def test_the_files_of_a_checkpoint(
    build: Build, tmp_path: Path, save: Save, name: str, plant: Callable[[Path, Path], None]
) -> None:
    folder, victim = tmp_path / "checkpoints", tmp_path / "victim"
    folder.mkdir()
    victim.write_text("precious")
    plant(folder / name, victim)
    with Step.load(build()) as step:
        if (plant, name) == (plant_fifo, "ckpt"):  # as a device would be: nobody means to have it replaced
            assert save(step, folder / "ckpt") == (
                f"'{folder / 'ckpt'}' cannot be written: Invalid argument; an older checkpoint there is untouched;"
                " choose another place"
            )
            (folder / "ckpt").unlink()
        for _ in range(2):
            assert save(step, folder / "ckpt") == ""
            assert (folder / "ckpt").lstat().st_nlink <= 2
            assert tensorfile.read(folder / "ckpt").is_sealed()
            assert not (folder / "ckpt").is_symlink()
        assert tensorfile.read(folder / "ckpt.previous").is_sealed()
    assert victim.read_text() == "precious"
    assert victim.stat().st_nlink == 1
    assert sorted(os.listdir(tmp_path)) == ["checkpoints", "linear_step", "victim"]
    assert sorted(os.listdir(folder)) == ["ckpt", "ckpt.previous"]


@pytest.mark.parametrize("save", [save_in_python, save_in_c])
def test_what_cannot_be_removed_is_named(build: Build, tmp_path: Path, save: Save) -> None:
    (tmp_path / ".ckpt.tmp").mkdir()
    with Step.load(build()) as step:
        assert save(step, tmp_path / "ckpt") == (
            f"'{tmp_path / '.ckpt.tmp'}' is in the way of a checkpoint and cannot be removed: Is a directory; remove it"
        )
    assert not (tmp_path / "ckpt").exists()


@pytest.mark.parametrize("save", [save_in_python, save_in_c])
def test_who_holds_a_checkpoint_holds_it_between_two_temporary_files(build: Build, tmp_path: Path, save: Save) -> None:
    """A holder has then moved one to its place, still locked, and not made the next."""
    path = tmp_path / "ckpt"
    with Step.load(build()) as step:
        assert save(step, path) == ""
        with open(path) as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            assert save(step, path) == f"'{path}': another process is writing it; give each its own checkpoint"
        assert not list(tmp_path.glob(".*"))
        assert save(step, path) == ""


def test_a_link_at_the_name_of_a_written_file_is_replaced(tmp_path: Path) -> None:
    """Reports, dumps, plans, exported models: all are written so."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for plant in (plant_link, plant_dangling_link, plant_hard_link, plant_fifo):
        plant(tmp_path / "report.md", victim)
        tensorfile.write_atomically(tmp_path / "report.md", [b"a report"])
        assert (tmp_path / "report.md").read_bytes() == b"a report"
        (tmp_path / "report.md").unlink()
    assert victim.read_text() == "precious"
    assert os.listdir(tmp_path) == ["victim"]
