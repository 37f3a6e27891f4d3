"""Targets that the large networks are not built for: a small step passes its self-test, against PyTorch's numbers."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import pytest
import torch

from gfcompile.codegen.link import find_missing
from gfcompile.compiler import write_step
from gfcompile.frontend.losses import resolve_loss
from gfcompile.job import Job
from gfcompile.settings.schema import Request
from gfcompile.stages import lower_job
from gfcompile.targets import find_target
from tests.artifacts import tiny_net
from tests.boards.conftest import emulator
from tests.lean import place_lean
from tests.missing import skip_for_want


@pytest.mark.slow
def test_the_self_test_of_a_small_step(tmp_path: Path) -> None:
    job = Job(tiny_net(), (torch.randn(2, 3, 16, 16),), resolve_loss("cross_entropy"), Request(layers=2, r={"*": 2}))
    lowered = lower_job(job)
    for name in ("rpi5", "jetson-nano-cpu", "x86-64-v2"):
        target = find_target(name)
        missing = find_missing(target)
        if missing is not None:
            skip_for_want(f"the linker of target {name} is not installed; {missing}")
        run = [] if target.architecture == platform.machine() else emulator(name)
        folder = write_step(place_lean(lowered, target), tmp_path / name.replace("-", "_"))
        done = subprocess.run(
            [*run, str(folder / "gf-train"), "--selftest"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"
        assert "PASS: " in done.stdout
