"""A ResNet and a MobileNetV2 built here for Raspberry Pis: they train under an emulator of the board's own CPU as the
x86 artifact does, use no instruction and no symbol that the board lacks, and are small. Correctness only: no speed."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from gfcompile.codegen.binary_check import needed_glibc, needed_symbols
from gfcompile.codegen.link import link_executable
from gfcompile.targets import find_target
from tests.artifacts import ON_BOARDS, RATE, STEPS, Builds
from tests.boards.conftest import emulator
from tests.boards.disassembly import count_products, count_spills, disassemble, inner_loops, is_outside, needed_versions
from tests.tolerances import TRAINING_STEPS, assert_near

pytestmark = pytest.mark.slow
PRODUCTS = ("conv2d", "matmul", "channel_mix")
MEGABYTE = 1_000_000

each_artifact = pytest.mark.parametrize(("model", "board"), ON_BOARDS)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all boards: a C program that only knows gf_step.h."""
    out = tmp_path_factory.mktemp("program") / "train_steps"
    link_executable([Path(__file__).with_name("train_steps.c")], [], out, find_target("rpi3"), ["-ldl"])
    return out


@each_artifact
def test_three_steps_as_on_x86(builds: Builds, program: Path, tmp_path: Path, model: str, board: str) -> None:
    run = emulator(board)
    reference, folder = builds.reference(model), builds.artifact(model, board)
    names = [entry["name"] for entry in json.loads((folder / "manifest.json").read_text())["state"]]
    assert names == list(reference.state)
    arrays = shutil.copytree(reference.arrays, tmp_path / "arrays")
    command = [*run, program, folder / "libstep.so", arrays, str(STEPS), str(RATE)]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert_near([float(line) for line in done.stdout.split()], reference.losses, TRAINING_STEPS, "losses")
    for index, (name, expected) in enumerate(reference.state.items()):
        found = np.fromfile(arrays / f"trained{index}", expected.dtype)
        assert_near(found, expected, TRAINING_STEPS, name)


@each_artifact
def test_every_product_is_neon(builds: Builds, model: str, board: str) -> None:
    functions = disassemble(builds.artifact(model, board) / "libstep.so")
    products = {name: code for name, code in functions.items() if any(kind in name for kind in PRODUCTS)}
    assert len(products) > 10
    assert [name for name, code in products.items() if count_products(code) == 0] == []
    crowded = [
        name
        for name, code in products.items()
        if "conv2d" in name and "winograd" not in name  # its transforms of 6x6 values cannot stay in 32 registers
        for loop in inner_loops(code)
        if 0 < count_products(loop) < 10 * count_spills(loop)  # a padding loop stores zeros to a buffer on the stack
    ]
    assert crowded == []
    outside = {name: each for name, code in functions.items() for each in code if is_outside(each)}
    assert outside == {}


@each_artifact
def test_it_loads_on_old_systems(builds: Builds, model: str, board: str) -> None:
    library = builds.artifact(model, board) / "libstep.so"
    assert needed_versions(library) == {"2.17"}
    assert needed_glibc(library) == "2.17"
    assert {"pthread_create", "expf"} <= needed_symbols(library).keys()
    assert library.stat().st_size < MEGABYTE
