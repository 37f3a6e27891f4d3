"""A compiled CUDA step, from PyTorch to the launcher: small, with all the emulator's checks, on x86 and aarch64."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gfcompile
from gfcompile.codegen.cuda.packages import find, find_headers
from gfcompile.codegen.link import find_missing
from gfcompile.errors import UserError
from gfcompile.targets import find_target
from tests.cuda.emulator import build, build_driver, driver_environment
from tests.end_to_end.conftest import SGD, random_batch, small_resnet
from tests.missing import skip_for_want
from tests.tolerances import EXACT_GRADIENT, LOGITS, TRAINING_STEPS, assert_near

pytestmark = pytest.mark.slow
OPTIONS = {"layers": 3, "r": 2, "lr": 0.05, **SGD}
STEPS = 3
# What a process with the stand-in driver does: the results go to a file.
TRAIN = """
import sys
import numpy as np
sys.path.insert(0, sys.argv[1])
import small_step
batch = np.load(sys.argv[2])
with small_step.load() as step:
    found = {"logits": step.predict(batch["x"])}
    found |= {f"gradient {name}": value for name, value in step.gradients(batch["x"], batch["y"]).items()}
    found["losses"] = [step.train(batch["x"], batch["y"]) for _ in range(int(sys.argv[4]))]
    found |= {f"state {name}": value for name, value in step.state_dict().items()}
np.savez(sys.argv[3], **found)
"""


@pytest.fixture(scope="module", autouse=True)
def compilers() -> None:
    try:
        find("ptxas"), find("libnvrtc.so.12"), find_headers()
    except UserError as error:
        skip_for_want(str(error))


def build_artifact(folder: Path, **target: str) -> Path:
    x, _ = random_batch((2, 3, 32, 32), seed=0)
    return gfcompile.build(small_resnet(), x, out=folder / "small_step", **OPTIONS, **target)


def build_kernels(artifact: Path, compiler: str, folder: Path) -> Path:
    source = (artifact / "graphs" / "kernels.cu").read_text()
    return build(source, folder / "kernels.so", race_check=True, compiler=compiler)


def test_it_trains_as_the_native_one(tmp_path: Path) -> None:
    x, y = random_batch((2, 3, 32, 32), seed=1)
    np.savez(tmp_path / "batch.npz", x=x.numpy(), y=y.numpy())
    artifact = build_artifact(tmp_path / "cuda", target="cuda", arch="sm_53")
    environment = driver_environment(
        build_driver(tmp_path / "driver"), build_kernels(artifact, "g++", tmp_path), log=tmp_path / "log"
    )
    arguments = [artifact.parent, tmp_path / "batch.npz", tmp_path / "found.npz", STEPS]
    subprocess.run([sys.executable, "-c", TRAIN, *map(str, arguments)], env={**os.environ, **environment}, check=True)

    (tmp_path / "native").mkdir()
    native = gfcompile.load(build_artifact(tmp_path / "native"))
    expected = {"logits": native.predict(x)}
    expected |= {f"gradient {name}": value for name, value in native.gradients(x, y).items()}
    expected["losses"] = [native.train(x, y) for _ in range(STEPS)]
    expected |= {f"state {name}": value for name, value in native.state_dict().items()}
    tolerances = {"logits": LOGITS, "gradient": EXACT_GRADIENT}
    with np.load(tmp_path / "found.npz") as found:
        assert set(found) == set(expected)
        for name, value in expected.items():
            assert_near(found[name], value, tolerances.get(name.split()[0], TRAINING_STEPS), name)

    calls = (tmp_path / "log").read_text().splitlines()
    assert calls[-1] == "end: 0 allocations, 0 modules, 0 streams, 0 contexts"
    last = calls[: len(calls) - calls[::-1].index("download 4")]  # up to the last step's loss
    step = last[len(last) - last[::-1].index("cuStreamSynchronize") :]
    kinds = [call.split()[0] for call in step]
    uploads = kinds.index("launch")
    assert step[:uploads] == ["upload 24576", "upload 16", "upload 8", "upload 4"]
    assert set(kinds[uploads:-1]) <= {"launch", "copy"}
    assert kinds[-1] == "download"


def test_the_jetsons_self_test_under_qemu(tmp_path: Path) -> None:
    """What is copied to the board: an aarch64 library with its cubin, and the trainer that comes with it."""
    target = find_target("jetson-nano")
    missing = find_missing(target)
    if missing is not None:
        skip_for_want(f"the linker of target {target.name} is not installed; {missing}")
    if not shutil.which(target.emulator[0]):
        skip_for_want(f"'{target.emulator[0]}' is not installed; apt install qemu-user-static")
    artifact = build_artifact(tmp_path / "jetson", target=target.name)
    kernels = build_kernels(artifact, "aarch64-linux-gnu-g++", tmp_path)
    driver = build_driver(tmp_path / "driver", "aarch64-linux-gnu-gcc")
    environment = driver_environment(driver, kernels, capability=53, version=10020)
    settings = [option for name, value in environment.items() for option in ("-E", f"{name}={value}")]
    command = [*target.emulator, "-L", "/usr/aarch64-linux-gnu", *settings, str(artifact / "gf-train"), "--selftest"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASS: " in done.stdout
    assert "FAIL" not in done.stdout
