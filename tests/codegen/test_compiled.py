"""The runtime's objects: compiled once, and again when anything that they depend on changes."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gfcompile.codegen.compiled import LONGEST, cache_folder, compile_once
from gfcompile.codegen.link import link_executable, trainer_sources
from gfcompile.targets import find_target


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("GFCOMPILE_CACHE", str(tmp_path / "cache"))
    return cache_folder("objects")


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    source, header = tmp_path / "answer.c", tmp_path / "answer.h"
    source.write_text('#include "answer.h"\nint answer(void) { return ANSWER; }\n')
    header.write_text("#define ANSWER 42\n")
    return source, header


def make(files: tuple[Path, Path], *options: str, identity: str = "one") -> tuple[Path, int]:
    """(object, when it was written)"""
    source, header = files
    (made,) = compile_once(["cc", *options, f"-I{source.parent}"], identity, [source], [header])
    return made, made.stat().st_mtime_ns


def test_a_second_call_compiles_nothing(files: tuple[Path, Path], cache: Path) -> None:
    assert make(files) == make(files)
    assert [path.name for path in cache.iterdir()] == [make(files)[0].parent.name]  # and no scratch is left


def test_whatever_the_object_depends_on_makes_another(files: tuple[Path, Path]) -> None:
    first, _ = make(files)
    assert make(files, "-O1")[0] != first
    assert make(files, identity="another compiler")[0] != first
    files[1].write_text("#define ANSWER 43\n")
    changed, _ = make(files)
    assert changed != first
    assert changed.read_bytes() != first.read_bytes()


def test_a_failure_leaves_nothing(files: tuple[Path, Path], cache: Path) -> None:
    files[0].write_text("nonsense")
    with pytest.raises(subprocess.CalledProcessError) as caught:
        make(files)
    assert "error" in caught.value.stderr
    assert list(cache.iterdir()) == []


def test_what_killed_processes_left_is_swept(files: tuple[Path, Path], cache: Path) -> None:
    left = [cache / name for name in ("tmpold", "tmpyoung")]
    for folder in left:
        (folder / "objects").mkdir(parents=True)
    os.utime(left[0], (time.time() - LONGEST - 1,) * 2)
    made, _ = make(files)
    assert {path.name for path in cache.iterdir()} == {"tmpyoung", made.parent.name}


def test_a_chosen_cache_needs_no_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    assert cache_folder("objects") == tmp_path / "cache" / "objects"
    monkeypatch.delenv("GFCOMPILE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder("objects") == tmp_path / "gfcompile" / "objects"


def test_where_no_cache_can_be(files: tuple[Path, Path], cache: Path) -> None:
    cache.parent.write_text("a file where the folder should be")
    with pytest.raises(OSError, match=r"Not a directory|File exists"):
        make(files)


def test_a_full_disk_under_the_cache_alone(tmp_path: Path, cache: Path) -> None:
    """The C compiler is who cannot write there; what can be linked without the cache is linked."""
    compiler, program = tmp_path / "full-cc", tmp_path / "program"
    script = f'case "$*" in *{cache}*) echo "fatal error: No space left on device" >&2; exit 1;; esac'
    compiler.write_text(f'#!/bin/sh\n{script}\nexec {shutil.which("cc")} "$@"\n')
    compiler.chmod(0o755)
    target = replace(find_target("native"), link=[str(compiler)])
    link_executable(trainer_sources(), [], program, target, ("-Wl,--no-as-needed", "-ldl"))
    assert program.exists()
    assert list(cache.iterdir()) == []
