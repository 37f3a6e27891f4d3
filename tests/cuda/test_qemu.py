"""What is copied to a Jetson, run on its own CPU under qemu: the library with its cubin, the trainer, the launcher."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import gfcompile
from gfcompile.codegen.link import find_missing
from gfcompile.targets import find_target
from tests.artifacts import tiny_net
from tests.cuda.emulator import build, build_driver, driver_environment
from tests.lean import lean
from tests.missing import skip_for_want

pytestmark = pytest.mark.coverage


def test_the_self_test_of_a_jetson(tmp_path: Path) -> None:
    target = find_target("jetson-nano")
    missing = find_missing(target)
    if missing is not None:
        skip_for_want(f"the linker of target {target.name} is not installed; {missing}")
    if not shutil.which(target.emulator[0]):
        skip_for_want(f"'{target.emulator[0]}' is not installed; apt install qemu-user-static")
    x = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    with lean():
        folder = gfcompile.build(tiny_net(), x, layers=2, r=2, target=target.name, out=tmp_path / "tiny_step")
    source = (folder / "graphs" / "kernels.cu").read_text()
    kernels = build(source, tmp_path / "kernels.so", race_check=True, compiler="aarch64-linux-gnu-g++")
    driver, log = build_driver(tmp_path / "driver", "aarch64-linux-gnu-gcc"), tmp_path / "log"
    variables = driver_environment(driver, kernels, capability=53, version=10020, log=log)
    settings = [option for name, value in variables.items() for option in ("-E", f"{name}={value}")]
    command = [*target.emulator, "-L", "/usr/aarch64-linux-gnu", *settings, str(folder / "gf-train"), "--selftest"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASS: " in done.stdout
    calls = log.read_text().splitlines()
    assert "cuModuleLoadData cubin: 0" in calls
    assert calls[-1] == "end: 0 allocations, 0 modules, 0 streams, 0 contexts"
    launches = [index for index, call in enumerate(calls) if call.startswith("launch")]
    between = {call.split()[0] for call in calls[launches[0] : launches[-1]]}
    assert between <= {"launch", "copy"}, "the host waits, or copies, in the middle of a step"
