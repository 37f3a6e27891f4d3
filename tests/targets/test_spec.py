"""Targets: the shipped ones, a user's own, and what is said of a wrong one."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from gfcompile.errors import UserError
from gfcompile.targets import Machine, find_target, list_targets
from gfcompile.targets.host import host_cache_kib

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


NEON = {"rpi3", "rpi4", "rpi5", "jetson-nano-cpu"}
JETSONS = {"jetson-nano": "sm_53", "jetson-tx2": "sm_62", "jetson-xavier": "sm_72", "jetson-orin": "sm_87"}
GPU = """
[gpu]
arch = "sm_72"
multiprocessors = 6
"""


@pytest.mark.parametrize("name", list_targets())
def test_every_shipped_target_reads(name: str) -> None:
    target = find_target(name, "sm_86" if name == "cuda" else None)
    assert target.name == ("jetson-nano" if name == "jetson" else name)
    assert target.description
    assert target.lanes in (4, 8, 16)
    assert target.registers in (16, 32)
    assert target.tvm["num-cores"] == target.cores >= 1
    assert target.cache >= 64 * 1024
    assert "host" not in target.tvm.values()
    assert target.link
    assert (target.kind == "cuda") == (target.gpu is not None)
    for figure in dataclasses.astuple(target.machine):
        assert figure is None or (figure[0] > 0 and len(figure[1]) > 20)


def test_the_shipped_targets() -> None:
    assert {"native", "x86-64-v2", "x86-64-v3", "x86-64-v4", "cuda", "jetson", *NEON, *JETSONS} == set(list_targets())


@pytest.mark.parametrize("name", sorted(NEON | JETSONS.keys()))
def test_the_boards(name: str) -> None:
    target = find_target(name)
    assert (target.lanes, target.registers, target.architecture) == (4, 32, "aarch64")
    assert (target.link, target.glibc) == (["ziglang", "cc"], "2.17")
    assert target.in_order == (name == "rpi3")
    assert target.emulator[0] == "qemu-aarch64-static"
    assert target.machine.peak_gflops is not None
    assert target.machine.bandwidth_gbs is not None
    assert (target.gpu.arch if target.gpu else None) == JETSONS.get(name)


def test_gpu_limits() -> None:
    """As NVIDIA's deviceQuery prints them on a Jetson Nano."""
    gpu = find_target("jetson-nano").gpu
    assert gpu is not None
    assert (gpu.capability, gpu.multiprocessors, gpu.warp) == (53, 1, 32)
    assert (gpu.registers_per_block, gpu.shared_bytes_per_block) == (32768, 49152)
    assert (gpu.threads_per_multiprocessor, gpu.shared_bytes_per_multiprocessor) == (2048, 65536)


def test_arch_is_for_cuda() -> None:
    assert find_target("cuda", "sm_75").gpu.arch == "sm_75"  # type: ignore[union-attr]
    known = "sm_53, sm_60, sm_61, sm_62, sm_70, sm_72, sm_75, sm_80, sm_86, sm_87, sm_89, sm_90"
    for name, arch, text in (
        ("cuda", None, f"target 'cuda': which GPU is not said; add --arch with one of: {known}"),
        ("cuda", "sm_20", f"--arch sm_20: not an architecture that is compiled for; use one of: {known}"),
        ("jetson", "sm_72", "--arch sm_72: target 'jetson-nano' has its own; --arch is for --target cuda"),
        ("rpi4", "sm_72", "--arch sm_72: target 'rpi4' has its own; --arch is for --target cuda"),
    ):
        with pytest.raises(UserError) as error:
            find_target(name, arch)
        assert str(error.value) == text


def test_a_users_own_gpu_board(tmp_path: Path) -> None:
    path = tmp_path / "robot.toml"
    path.write_text('kind = "cuda"\nglibc = "2.31"\nlibc = "musl"\n' + BOARD + GPU)
    target = find_target(str(path))
    assert (target.kind, target.glibc, target.libc) == ("cuda", "2.31", "musl")
    assert target.gpu is not None
    assert (target.gpu.arch, target.gpu.multiprocessors) == ("sm_72", 6)
    assert target.machine == Machine()


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
        (
            "lanes = 4",
            "",
            "lacks 'lanes'; a target has the fields cache_kib, cores, description, emulator, glibc, gpu,",
        ),
        ("lanes = 4", "lanes = 4\nspeed = 9", "has the unknown field 'speed'; a target has the fields"),
        ("lanes = 4", "lanes = 0", "lanes is '0'; give a whole number from 1 to 2147483647, or \"host\""),
        ("lanes = 4", "lanes =", "not a valid TOML file"),
        ("cache_kib = 256", "cache_kib = -1", "cache_kib is '-1'; give a whole number from 1 to 2147483647"),
        ("lanes = 4", "lanes = true", "lanes is 'True'; give a whole number from 1 to 2147483647, or \"host\""),
        ('"a board"', "7", "description is '7'; give a text in quotes"),
        ('["zig", "cc"]', '"zig cc"', "link is 'zig cc'; give the name of a C compiler on your PATH and"),
        *(
            ('["zig", "cc"]', str(words), f"link is '{words}'; give the name of a C compiler on your PATH and machine")
            for words in (
                ["./x.sh"],
                ["sh", "x.sh"],
                ["./gcc"],
                ["gcc", "-wrapper", "x.sh"],
                ["gcc", "-fplugin=x.so"],
                ["gcc", "-B."],
                ["gcc", "x.c"],
                ["gcc", "@x"],
                ["zig", "run", "x.zig"],
            )
        ),
        (
            "lanes = 4",
            'lanes = 4\nemulator = ["./x.sh"]',
            "emulator is '['./x.sh']'; give the name of a qemu on your PATH and its -cpu, as in",
        ),
        (
            "lanes = 4",
            'lanes = 4\nemulator = ["qemu-aarch64", "-plugin", "x.so"]',
            "emulator is '['qemu-aarch64', '-plugin', 'x.so']'; give the name of a qemu on your PATH",
        ),
        ("lanes = 4", 'lanes = 4\nkind = "tpu"', 'kind is \'tpu\'; give "cpu" or "cuda"'),
        ("lanes = 4", 'lanes = 4\nglibc = "new"', "glibc is 'new'; give the oldest version to run on, as in \"2.17\""),
        ("lanes = 4", 'lanes = 4\nlibc = "bionic"', 'libc is \'bionic\'; give "glibc" or "musl"'),
        ("lanes = 4", 'lanes = 4\nin_order = "yes"', "in_order is 'yes'; give true or false"),
        ("lanes = 4", 'lanes = 4\nkind = "cuda"', "lacks [gpu]; both belong to a GPU, neither to a CPU"),
        ("[tvm]", GPU + "[tvm]", 'has [gpu] without kind = "cuda"; both belong to a GPU'),
        ("[tvm]", "[machine]\nspeed = 1\n[tvm]", "has the unknown field 'machine.speed'; [machine] has the fields"),
        ("[tvm]", "[machine]\nwatts = 5\n[tvm]", "machine.watts is '5'; give a table"),
        ("[tvm]", "[machine.watts]\nvalue = 5\n[tvm]", "lacks 'machine.watts.source'; [machine.watts] has the fields"),
        (
            "[tvm]",
            '[machine.watts]\nvalue = 0\nsource = "x"\n[tvm]',
            "machine.watts.value is '0'; give a number above 0",
        ),
        ('kind = "llvm"', 'kind = "c"', "tvm.kind is 'c'; give \"llvm\""),
        (
            '"aarch64-linux-gnu"',
            '"mips-linux-gnu"',
            "tvm.mtriple is 'mips-linux-gnu'; give a triple of x86_64 or aarch64,",
        ),
        ('"cortex-a53"', '"cortex-a99"', "tvm.mcpu is 'cortex-a99'; give one of: a64fx, "),
        ("mcpu", "cpu", "lacks 'tvm.mcpu', has the unknown field 'tvm.cpu'; [tvm] has the fields kind, mattr, mcpu,"),
        ("lanes = 4", 'lanes = 4\nalias = "rpi3"', "a target that is an alias has the fields alias"),
    ],
)
def test_a_wrong_file_is_told_what_is_wrong(tmp_path: Path, old: str, new: str, text: str) -> None:
    path = tmp_path / "board.toml"
    path.write_text(BOARD.replace(old, new))
    with pytest.raises(UserError) as error:
        find_target(str(path))
    assert str(error.value).startswith(f"{path}: ")
    assert text in str(error.value)


def test_an_alias_of_nothing(tmp_path: Path) -> None:
    path = tmp_path / "board.toml"
    path.write_text('alias = "z80"\n')
    with pytest.raises(UserError) as error:
        find_target(str(path))
    assert str(error.value) == f"{path}: alias is 'z80'; give another of: {', '.join(list_targets())}"
