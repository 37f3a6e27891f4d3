"""An artifact around `linear_program.c`, put together as the compiler does it."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gfcompile.artifact.folder import FRONT
from gfcompile.codegen.link import runtime_sources
from gfcompile.runtime import tensorfile
from gfcompile.runtime.manifest import FORMAT, write_manifest
from tests.store import Store

HERE = Path(__file__).parent
RUNTIME = Path(tensorfile.__file__).parent
FLAGS = ["-std=c11", "-O1", "-g", "-fPIC", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden"]

Build = Callable[..., Path]
Data = tuple[np.ndarray, np.ndarray]
SAMPLES = 10  # of `data`: two batches of 4, and one of 2


def weights(seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {
        "body.weight": np.arange(6, dtype=np.float32).reshape(2, 3),  # frozen
        "body.small": np.array([0.5, 1.5], np.float16),  # frozen
        "fc.weight": random.normal(size=(2, 3)).astype(np.float32),
        "fc.count": np.array(5, np.int64),
        "fc.bias": random.normal(size=3).astype(np.float32),
        "body.num_batches_tracked": np.array(7, np.int64),  # frozen, 0-d
    }


def manifest() -> dict[str, Any]:
    layout = {"shape": [2, 3], "permute": [1, 0]}

    def state(name: str, role: str, shape: list[int], dtype: str = "float32", **more: Any) -> dict[str, Any]:
        return {"name": name, "role": role, "shape": shape, "dtype": dtype, "layout": None, **more}

    return {
        "format": FORMAT, "name": "linear_step", "build_id": build_id_of(()), "library": "libstep.so", "files": {},
        "batch": 4, "lr": 0.05,
        "checkpoint": {"compatible": "c0", "frozen": "f0"},
        "loss": {"name": "mse", "per_sample": True, "settings": {}, "classes": None}, "optimizer": {"name": "sgd"},
        "inputs": [
            {"name": "x", "role": "input", "shape": [4, 2], "dtype": "float32"},
            {"name": "target", "role": "target", "shape": [4, 3], "dtype": "float32"},
            {"name": "sample_weight", "role": "sample_weight", "shape": [4], "dtype": "float32"},
        ],
        "outputs": [{"name": "output", "key": None, "shape": [4, 3], "dtype": "float32"}],
        "state": [
            state("fc.weight", "parameter", [2, 3], layout=layout),
            state("fc.bias", "parameter", [3]),
            state("momentum_buffer/fc.weight", "optimizer", [2, 3], layout=layout),
            state("momentum_buffer/fc.bias", "optimizer", [3]),
            state("fc.count", "buffer", [], "int64"),
            state("scale", "constant", [1]),
        ],
        "gradients": ["fc.weight", "fc.bias"], "state_dict": list(weights()), "shared": {},
        "plan": {"trained": [], "exact": False, "compat": None},
        "filtered_layers": ["body"], "refusals": [["fc", "not a convolution"]], "batchnorm": "eval",
        "norms": {}, "dropout": False, "target": "test", "architecture": None, "versions": {},
    }  # fmt: skip


FEATURES = {
    "fingerprint": "f" * 64,
    "tensors": [
        {"name": "feature0", "role": "feature", "shape": [4, 2], "dtype": "float32"},
        {"name": "feature1", "role": "feature", "shape": [4], "dtype": "int64"},
    ],
}


def build_id_of(defines: tuple[str, ...]) -> str:
    return hashlib.sha256(" ".join(defines).encode()).hexdigest()


@pytest.fixture(scope="session")
def library(store: Store) -> Callable[..., Path]:
    """Compile the runtime with the program, once for each set of defines."""

    def compile_library(*defines: str) -> Path:
        def link(path: Path) -> None:
            sources = [HERE / "linear_program.c", *runtime_sources("cpu")]
            options = [f"-D{name}" for name in defines] + [f'-DBUILD_ID="{build_id_of(defines)}"', f"-I{RUNTIME}"]
            command = ["gcc", *FLAGS, *options, "-shared", "-pthread", "-o", str(path), *map(str, sources), "-lm"]
            subprocess.run(command, check=True, capture_output=True, text=True)

        return store.get(f"linear_{'_'.join(defines) or 'plain'}.so", link)

    return compile_library


@pytest.fixture
def build(library: Callable[..., Path], tmp_path: Path) -> Build:
    """build(*defines, name=, seed=, **manifest entries) writes an artifact's folder."""

    def write_artifact(*defines: str, name: str = "linear_step", seed: int = 0, **changes: Any) -> Path:
        folder = tmp_path / name
        (folder / "_runtime").mkdir(parents=True)
        for file in RUNTIME.glob("*.py"):
            shutil.copy(file, folder / "_runtime")
        shutil.copy(FRONT, folder / "__init__.py")
        content = {**manifest(), "build_id": build_id_of(defines), **changes}
        if "LABELS" in defines:
            content["inputs"][1] = {"name": "target", "role": "target", "shape": [4], "dtype": "int64"}
            content["loss"] = {"name": "cross_entropy", "per_sample": True, "settings": {}, "classes": 3}
        if "GF_FEATURES" in defines:
            content = {"features": FEATURES, **content}
        shutil.copy(library(*defines), folder / "libstep.so")
        tensorfile.write(folder / "weights.safetensors", weights(seed))
        tensorfile.write(folder / "constants.safetensors", {"scale": np.array([1.5], np.float32)})
        for file in sorted([*folder.glob("*.so"), *folder.glob("*.safetensors")]):
            content["files"][file.name] = tensorfile.sha256(file.read_bytes())
        write_manifest(folder, content)
        return folder

    return write_artifact


@pytest.fixture
def batch() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(1)
    return random.normal(size=(4, 2)).astype(np.float32), random.normal(size=(4, 3)).astype(np.float32)


@pytest.fixture(scope="session")
def trainer(store: Store) -> Path:
    """gf-train, which fits every library of the same interface."""
    from .trainer import link_trainer  # which needs this file

    def link(folder: Path) -> None:
        folder.mkdir()
        link_trainer(folder)

    return store.get("trainer", link) / "gf-train"


@pytest.fixture
def artifact(build: Build, trainer: Path) -> Path:
    folder = build()
    shutil.copy(trainer, folder)
    return folder


@pytest.fixture
def classifier(build: Build, trainer: Path) -> Path:
    folder = build("LABELS")
    shutil.copy(trainer, folder)
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Data:
    drawn = np.random.default_rng(5)
    x, y = (drawn.normal(size=(SAMPLES, width)).astype(np.float32) for width in (2, 3))
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    return x, y
