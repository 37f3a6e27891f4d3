"""Targets: the shipped ones, a user's own, and what is said of a wrong one."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from gfcompile.errors import UserError
from gfcompile.targets import find_target, list_targets
from gfcompile.targets.spec import host_cache_kib

BOARD = """
description = "a board"
lanes = 4
registers = 32
cores = 2
cache_kib = 256
link = ["zig", "cc"]

[tvm]
kind = "llvm"
mtriple = "aarch64-linux-gnu"
mcpu = "cortex-a53"
"""


@pytest.mark.parametrize("name", list_targets())
def test_every_shipped_target_reads(name: str) -> None:
    target = find_target(name)
    assert target.name == name
    assert target.description
    assert target.lanes in (4, 8, 16)
    assert target.registers in (16, 32)
    assert target.tvm["num-cores"] == target.cores >= 1
    assert target.cache >= 64 * 1024
    assert "host" not in target.tvm.values()
    assert target.link


def test_a_target_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        find_target("x86-64-v3").lanes = 1  # type: ignore[misc]


def test_a_users_own_file(tmp_path: Path) -> None:
    path = tmp_path / "board.toml"
    path.write_text(BOARD)
    target = find_target(str(path))
    assert (target.name, target.lanes, target.registers, target.cores) == ("board", 4, 32, 2)
    assert target.cache == 256 * 1024
    assert target.tvm == {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a53", "num-cores": 2}
    assert target.link == ["zig", "cc"]


@pytest.mark.parametrize(
    ("caches", "kib"),
    [
        ([("1", "32K", "0"), ("2", "512K", "0"), ("3", "32768K", "0-3")], 512),
        ([("1", "32K", "0"), ("2", "1024K", "0-3")], 256),  # four cores share one
        ([("2", "2048K", "0-1,8-9")], 512),
        ([("1", "32K", "0")], 512),  # none told of
        ([], 512),
    ],
)
def test_the_hosts_cache(tmp_path: Path, caches: list[tuple[str, str, str]], kib: int) -> None:
    for index, values in enumerate(caches):
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        for name, value in zip(("level", "size", "shared_cpu_list"), values, strict=True):
            (folder / name).write_text(value + "\n")
    assert host_cache_kib(tmp_path) == kib


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(UserError) as error:
        find_target("z80")
    assert str(error.value) == (
        f"unknown target 'z80'; use one of: {', '.join(list_targets())}, or the path of a .toml file"
    )


def test_a_missing_file() -> None:
    with pytest.raises(UserError) as error:
        find_target("nowhere.toml")
    assert str(error.value) == (
        f"target file 'nowhere.toml' does not exist; give a .toml file or one of: {', '.join(list_targets())}"
    )


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("lanes = 4", "", "lacks 'lanes'; a target has the fields cache_kib, cores, description, lanes, link,"),
        ("lanes = 4", "lanes = 4\nspeed = 9", "has the unknown field 'speed'; a target has the fields"),
        ("lanes = 4", "lanes = 0", "lanes is '0'; give a whole number of at least 1, or \"host\""),
        ("lanes = 4", "lanes =", "not a valid TOML file"),
        ("cache_kib = 256", "cache_kib = -1", "cache_kib is '-1'; give a whole number of at least 1"),
    ],
)
def test_a_wrong_file_is_told_what_is_wrong(tmp_path: Path, old: str, new: str, text: str) -> None:
    path = tmp_path / "board.toml"
    path.write_text(BOARD.replace(old, new))
    with pytest.raises(UserError) as error:
        find_target(str(path))
    assert str(error.value).startswith(f"{path}: ")
    assert text in str(error.value)
