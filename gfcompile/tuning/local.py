"""Trials as programs of this machine, or of another one under its emulator: each in a process of its own."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

from gfcompile.errors import UserError
from gfcompile.targets import Target
from gfcompile.tuning.machine import read_machine
from gfcompile.tuning.trial import Kind, Measurement, TrialFailed, read_measurement

TURNS = 8
BLOCK_SECONDS = 0.005
_EMULATED = 40  # so much longer a program may take under an emulator
_BLOCKS_A_TURN = 2
_WARM_UP_BLOCKS = 8  # of both kernels: blocks that grow until they are long enough


class LocalRunner:
    """Runs built trials, one at a time, in `turns` turns of `block_seconds` or one run of each kernel."""

    form: Kind = "program"

    def __init__(self, target: Target, turns: int = TURNS, block_seconds: float = BLOCK_SECONDS) -> None:
        self.turns, self.block_seconds = turns, block_seconds
        self.is_emulated = target.architecture != platform.machine()
        self.kind = "emulated" if self.is_emulated else "measured"
        self._command: tuple[str, ...] = ()
        if self.is_emulated:
            self._command = _find_emulator(target)

    def run(self, built: Path, timeout: float) -> Measurement:
        """`timeout` is for what the kernels themselves need; the length of the blocks comes on top.

        Under an emulator everything may take forty times as long.
        """
        allowed = allowed_seconds(timeout, self.turns, self.block_seconds, self.is_emulated)
        command = [*self._command, str(built.absolute()), str(self.turns), str(self.block_seconds)]
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            cwd=built.parent,
        ) as process:
            try:
                out, err = process.communicate(timeout=allowed)
            except subprocess.TimeoutExpired:
                raise TrialFailed(f"the trial hung: it was ended after {allowed:.3g} s") from None
            finally:  # an interrupted session, too, leaves nothing behind
                if process.returncode is None:
                    os.killpg(process.pid, signal.SIGKILL)
        if process.returncode < 0:
            raise TrialFailed(f"the trial crashed: {_name(-process.returncode)}")
        if process.returncode > 0:
            said = (err.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
            raise TrialFailed(f"the trial ended with exit code {process.returncode}: {said}")
        return read_measurement(out.decode(errors="replace"))

    def boards(self) -> int:
        """This machine."""
        return 1

    def read_machine(self) -> dict[str, Any]:
        """What is known of this machine."""
        return read_machine()

    def close(self) -> None:
        """Nothing is kept between trials."""


def allowed_seconds(timeout: float, turns: int, block_seconds: float, is_emulated: bool) -> float:
    """How long a whole trial may take where its kernels may take `timeout`."""
    blocks = _WARM_UP_BLOCKS + _BLOCKS_A_TURN * turns
    return timeout * (_EMULATED if is_emulated else 1) + blocks * block_seconds


def _find_emulator(target: Target) -> tuple[str, ...]:
    here = platform.machine()
    if not target.emulator:
        problem = f"its programs do not run on this machine ({here}), and it names no emulator"
        raise UserError(f"target '{target.name}': {problem}; use --rpc with a board")
    if shutil.which(target.emulator[0]) is None:
        problem = f"'{target.emulator[0]}' is not installed, and programs for {target.architecture} do not run here"
        raise UserError(f"target '{target.name}': {problem}; apt install qemu-user-static, or use --rpc with a board")
    return target.emulator


def _name(number: int) -> str:
    """SIGSEGV (Segmentation fault), say."""
    try:
        return f"{signal.Signals(number).name} ({signal.strsignal(number)})"
    except ValueError:
        return f"signal {number}"  # a real-time one has no name
