"""Whatever a trial's program does, the session gets a measurement or a sentence."""

from __future__ import annotations

import os
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gfcompile.codegen.link import link_executable
from gfcompile.errors import UserError
from gfcompile.targets import find_target
from gfcompile.tuning.local import LocalRunner
from gfcompile.tuning.trial import Measurement, TrialFailed

NATIVE = find_target("native")


def program(body: str, folder: Path) -> Path:
    """A stand-in for a trial: C that misbehaves."""
    source = folder / "stand_in.c"
    headers = "".join(f"#include <{name}.h>\n" for name in ("signal", "stdio", "stdlib", "string", "unistd"))
    source.write_text(f"{headers}int main(int count, char **argv) {{ {body} }}\n")
    link_executable([source], [], folder / "trial", NATIVE)
    return folder / "trial"


def failure(body: str, folder: Path, timeout: float = 60) -> str:
    with pytest.raises(TrialFailed) as failed:
        LocalRunner(NATIVE).run(program(body, folder), timeout)
    return str(failed.value)


def test_turns_and_block_are_passed_on(tmp_path: Path) -> None:
    body = 'printf("{\\"error\\": 0, \\"candidate\\": [%s], \\"reference\\": [%s]}\\n", argv[1], argv[2]); return 0;'
    built = program(body, tmp_path)
    assert LocalRunner(NATIVE, 7, 0.25).run(built, 60) == Measurement(0.0, (7.0,), (0.25,))
    assert LocalRunner(NATIVE).kind == "measured"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("*(volatile int *)8 = 1;", "the trial crashed: SIGSEGV (Segmentation fault)"),
        ("abort();", "the trial crashed: SIGABRT (Aborted)"),
        ("raise(SIGRTMIN + 3);", "the trial crashed: signal 37"),
        ("return 4;", "the trial ended with exit code 4: it said nothing"),
        ('fputs("first\\nlast\\n", stderr); return 1;', "the trial ended with exit code 1: last"),
        ('puts("hello"); return 0;', "the trial's result cannot be read: 'hello\\n'"),
        ('fputs("\\xff{", stdout); return 0;', "the trial's result cannot be read: '�{'"),
    ],
)
def test_a_program_that_ends_badly(body: str, reason: str, tmp_path: Path) -> None:
    assert failure(body, tmp_path) == reason


def test_a_program_that_hangs_is_ended_with_all_it_started(tmp_path: Path) -> None:
    """Its child would otherwise hold the pipe, and the session with it."""
    body = """
      FILE *out = fopen("pids", "w");
      pid_t child = fork();
      if (child == 0) for (;;) pause();
      fprintf(out, "%d %d", (int)getpid(), (int)child);
      fclose(out);
      for (;;) pause();
    """
    said = failure(body, tmp_path, 1.0)
    assert re.fullmatch(r"the trial hung: it was ended after 1\.\d+ s", said)
    for pid in map(int, (tmp_path / "pids").read_text().split()):
        assert not runs(pid)


def runs(pid: int) -> bool:
    """A killed child whose parent was killed, too, is reaped by somebody else, in time; a zombie runs no more."""
    for _ in range(200):
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return False
        except (ProcessLookupError, FileNotFoundError):
            return False
        time.sleep(0.02)
    return True


def test_a_crash_leaves_no_core(tmp_path: Path) -> None:
    failure("*(volatile int *)8 = 1;", tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stand_in.c", "trial"]


def foreign() -> str:
    return "rpi3" if NATIVE.architecture == "x86_64" else "x86-64-v3"


def test_a_machine_that_is_not_here_needs_an_emulator() -> None:
    target = replace(find_target(foreign()), emulator=())
    with pytest.raises(UserError, match=r"and it names no emulator; use --rpc with a board$"):
        LocalRunner(target)
    with pytest.raises(UserError, match=r"'no-such-qemu' is not installed.*; apt install qemu-user-static, or use"):
        LocalRunner(replace(target, emulator=("no-such-qemu",)))


def test_under_an_emulator_nothing_is_measured(tmp_path: Path) -> None:
    """The emulator's command comes first, and what it says is read."""
    stand_in = tmp_path / "emulator"
    result = '{"error": 0, "candidate": [1], "reference": [2]}'
    stand_in.write_text(f"#!/bin/sh\n[ \"$1 $2\" = '-cpu {tmp_path}/trial' ] && echo '{result}'\n")
    stand_in.chmod(0o755)
    runner = LocalRunner(replace(find_target(foreign()), emulator=(str(stand_in), "-cpu")))
    assert runner.kind == "emulated"
    assert runner.run(tmp_path / "trial", 60) == Measurement(0.0, (1.0,), (2.0,))
