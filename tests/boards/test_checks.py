"""The checks of a board's binary, on binaries that must not pass."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from gfcompile.codegen.binary_check import check_glibc, needed_glibc, needed_symbols
from gfcompile.codegen.link import choose_linker, link_executable
from gfcompile.errors import ContractError, UserError
from gfcompile.targets import find_target
from tests.boards.conftest import emulator, need
from tests.boards.disassembly import disassemble, is_outside, needed_versions
from tests.selection import often

PROGRAM = """
#include <math.h>
#include <pthread.h>
#include <stdio.h>
static void *work(void *x) { *(float *)x = expf(*(float *)x); return x; }
int main(void) {
  float x = 1;
  pthread_t thread;
  if (pthread_create(&thread, NULL, work, &x) || pthread_join(thread, NULL)) return 1;
  printf("%.4f\\n", x);
  return 0;
}
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "program.c"
    path.write_text(PROGRAM)
    return path


def run(board: str, program: Path) -> str:
    return subprocess.run([*emulator(board), str(program)], capture_output=True, text=True, check=True).stdout


def test_instructions_outside_the_boards_set(tmp_path: Path) -> None:
    """As the assembler writes them: what it takes for later CPUs, and what every 64-bit Arm has."""
    assembler = need("aarch64-linux-gnu-as", "binutils-aarch64-linux-gnu")
    later = [
        "sdot v0.4s, v1.16b, v2.16b",
        "udot v0.4s, v1.16b, v2.4b[0]",
        "fmla v0.8h, v1.8h, v2.8h",
        "fadd h0, h1, h2",
    ]
    later += ["aese v0.16b, v1.16b", "ldadd w0, w1, [x2]", "bfdot v0.4s, v1.8h, v2.8h", "fmlal v0.4s, v1.4h, v2.4h"]
    always = ["fmla v0.4s, v1.4s, v2.s[1]", "fcvtl v0.4s, v1.4h", "fcvt s0, h1", "bfi w0, w1, #9, #23", "ldr q0, [sp]"]
    text = tmp_path / "code.s"
    text.write_text("\n".join([".arch armv8.6-a+crypto+fp16+fp16fml+dotprod", "code:", *later, *always, ""]))
    subprocess.run([assembler, str(text), "-o", str(tmp_path / "code.o")], check=True)
    (code,) = disassemble(tmp_path / "code.o").values()
    assert [is_outside(each) for each in code] == [True] * len(later) + [False] * len(always)


def test_a_linker_that_knows_no_floor(tmp_path: Path, source: Path) -> None:
    """Debian's cross compiler binds to its own glibc: the check finds what readelf shows."""
    need("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu")
    target = replace(find_target("rpi4"), link=["aarch64-linux-gnu-gcc"])
    out = tmp_path / "program"
    with pytest.raises(UserError) as error:
        link_executable([source], [], out, target)
    newest = max(needed_versions(out), key=lambda version: tuple(map(int, version.split("."))))
    assert newest != "2.17"
    assert str(error.value).startswith(f"target 'rpi4': program needs glibc {newest} (")
    assert "__libc_start_main" in str(error.value)
    assert str(error.value).endswith(
        'above the floor 2.17; link with ["ziglang", "cc"], or raise glibc in the target\'s file'
    )
    check_glibc(out, replace(target, glibc=newest))
    assert needed_glibc(out) == newest


def test_debians_gcc_by_option(tmp_path: Path, source: Path) -> None:
    need("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu")
    target = choose_linker(find_target("rpi4"), "gcc")
    assert (target.link, target.glibc) == (["aarch64-linux-gnu-gcc"], None)
    link_executable([source], [], tmp_path / "program", target)
    assert run("rpi4", tmp_path / "program") == "2.7183\n"


@pytest.mark.slow
@pytest.mark.parametrize(  # of musl, zig makes a whole C library the first time: a minute and more
    ("libc", "needs"), often([("glibc", "2.17"), ("musl", None)], [("glibc", "2.17")])
)
def test_zig(tmp_path: Path, source: Path, libc: str, needs: str | None) -> None:
    target = choose_linker(find_target("rpi3"), "zig", libc)
    program = tmp_path / "program"
    link_executable([source], [], program, target)
    assert needed_glibc(program) == needs
    dynamic = subprocess.run(["readelf", "-l", str(program)], capture_output=True, text=True, check=True).stdout
    assert ("INTERP" in dynamic) == (libc == "glibc")  # a static program names no loader
    assert run("rpi3", program) == "2.7183\n"


def test_symbols_of_this_machine(tmp_path: Path, source: Path) -> None:
    """The same names and versions that nm prints."""
    out = tmp_path / "program"
    link_executable([source], [], out, find_target("x86-64-v3"))
    listing = subprocess.run(["nm", "-D", str(out)], capture_output=True, text=True, check=True).stdout
    found = dict(line.split()[-1].split("@") for line in listing.splitlines() if "@GLIBC_" in line)
    assert {name: "GLIBC_" + ".".join(map(str, version)) for name, version in needed_symbols(out).items()} == found


def test_not_a_binary(tmp_path: Path) -> None:
    path = tmp_path / "libstep.so"
    path.write_bytes(b"text")
    with pytest.raises(ContractError, match="is no 64-bit little-endian ELF file"):
        needed_symbols(path)


def test_zig_is_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError) as error:
        link_executable([source], [], tmp_path / "program", find_target("rpi4"))
    assert str(error.value) == "target 'rpi4': 'ziglang' is not installed; pip install ziglang"


def test_no_cross_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError) as error:
        link_executable([source], [], tmp_path / "program", choose_linker(find_target("rpi4"), "gcc"))
    assert str(error.value) == (
        "target 'rpi4': 'aarch64-linux-gnu-gcc' is not installed; apt install gcc-aarch64-linux-gnu"
    )


@pytest.mark.parametrize(
    ("name", "linker", "libc", "text"),
    [
        ("rpi4", "ld", None, "--linker ld: is not known; use zig or gcc"),
        ("rpi4", None, "bionic", "--libc bionic: is not known; use glibc or musl"),
        ("rpi4", "gcc", "musl", "--libc musl: 'aarch64-linux-gnu-gcc' brings no musl; use --linker zig"),
        (
            "jetson",
            None,
            "musl",
            "--libc musl: target 'jetson-nano' loads the CUDA driver, which a static program cannot",
        ),
    ],
)
def test_wrong_options(name: str, linker: str | None, libc: str | None, text: str) -> None:
    with pytest.raises(UserError) as error:
        choose_linker(find_target(name), linker, libc)
    assert str(error.value) == text


def test_a_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: Path) -> None:
    """zig keeps what it made of a C library; the folder may be a file, or on a full or read-only disk."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("ZIG_GLOBAL_CACHE_DIR", str(blocked / "cache"))
    with pytest.raises(UserError) as error:
        link_executable([source], [], tmp_path / "program", find_target("rpi4"))
    assert str(error.value).startswith("target 'rpi4': 'ziglang' could not link the step (")
    assert str(error.value).endswith("; set ZIG_GLOBAL_CACHE_DIR to a folder that can be written")
