"""The runtime's objects: compiled once, and again when anything that they depend on changes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gfcompile.codegen.compiled import cache_folder, compile_once


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


def test_where_no_cache_can_be(files: tuple[Path, Path], cache: Path) -> None:
    cache.parent.write_text("a file where the folder should be")
    with pytest.raises(OSError, match=r"Not a directory|File exists"):
        make(files)
