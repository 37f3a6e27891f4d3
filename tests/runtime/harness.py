"""C programs that run a compiled step: see step_harness.h for the files they read."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from gfcompile.runtime.state import physical_shape
from gfcompile.runtime.step import Step

from .conftest import FLAGS, HERE, RUNTIME


def build_program(source: str, out: Path, *options: str) -> Path:
    """Compile one of the C files here; `-shared` among the options makes it a library."""
    command = ["cc", *FLAGS, "-std=gnu11", f"-I{RUNTIME}", "-pthread", str(HERE / source), *options, "-ldl"]
    done = subprocess.run([*command, "-o", str(out)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out


def read_state(step: Step) -> list[np.ndarray]:
    """The bytes of its state tensors, as the library keeps them."""
    states = [np.empty(size, np.uint8) for size in step._library.tensor_bytes]
    for index, state in enumerate(states):
        step._library.get(step._handle, index, state)
    return states


def write_arrays(step: Step, x: Any, y: Any, folder: Path) -> Path:
    """The step's state, one batch for it, and blocks of the size of its results."""
    folder.mkdir()
    manifest = step.manifest
    states = read_state(step)
    inputs, _ = step._door.stage("train", x, y)
    entries = [step._state.entry("parameter", name) for name in manifest["gradients"]]
    gradients = [np.zeros(physical_shape(entry), entry["dtype"]) for entry in entries]
    outputs = [np.zeros(spec["shape"], spec["dtype"]) for spec in manifest["outputs"]]
    blocks = {"state": states, "input": inputs, "gradient": gradients, "output": outputs}
    if "features" in manifest:
        features = step.features(x)
        blocks |= {"feature": features, "cached": step._features_door.stage("train_features", features, y)[0]}
    for name, arrays in blocks.items():
        for index, array in enumerate(arrays):
            (folder / f"{name}{index}").write_bytes(array.tobytes())
    return folder
