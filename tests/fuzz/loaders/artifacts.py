"""Artifacts: a folder of which only the library is what was compiled. Inputs are as in c/artifact.c."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import numpy as np

from gfcompile.codegen.link import runtime_sources
from gfcompile.export.trained import read_trained
from gfcompile.runtime import tensorfile
from gfcompile.runtime.step import Step
from tests.fuzz.check import Check, refused
from tests.fuzz.harness import STATE
from tests.fuzz.mutate import change_bundle, change_json, change_tensors
from tests.fuzz.sealing import each_way
from tests.fuzz.seeds import BUILD_ID, SEPARATOR
from tests.runtime.conftest import FLAGS, HERE, RUNTIME

FOLDER = Path("artifact")
FILES = ("weights.safetensors", "constants.safetensors", "selftest.safetensors")


@cache
def library() -> bytes:
    """The hand-written step of tests/runtime, with the build id of the seeds."""
    sources = [HERE / "linear_program.c", *runtime_sources("cpu")]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in (*sources, *sorted(RUNTIME.glob("*.h")))))
    built = STATE / "build" / f"libstep-{digest.hexdigest()[:16]}.so"
    if not built.exists():
        built.parent.mkdir(parents=True, exist_ok=True)
        options = [f'-DBUILD_ID="{BUILD_ID}"', f"-I{RUNTIME}", "-shared", "-pthread"]
        unfinished = built.with_suffix(f".{os.getpid()}")
        subprocess.run(["gcc", *FLAGS, *options, "-o", str(unfinished), *map(str, sources), "-lm"], check=True)
        unfinished.rename(built)
    return built.read_bytes()


def read(data: bytes) -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    (FOLDER / "libstep.so").write_bytes(library())
    manifest, *files = data.split(SEPARATOR, len(FILES))
    for index, (name, content) in enumerate(zip(FILES, files), 1):
        (FOLDER / name).write_bytes(content)
        manifest = manifest.replace(f"@{index}@".encode(), tensorfile.sha256(content).encode())
    for content in each_way(manifest.replace(b"@4@", tensorfile.sha256(library()).encode())):
        (FOLDER / "manifest.json").write_bytes(content)
        refused(read_trained, FOLDER, None, None)
        step = refused(Step.load, FOLDER, 1)
        if step is not None:
            use(step)


def use(step: Step) -> None:
    x, y = np.ones((4, 2), np.float32), np.ones((4, 3), np.float32)
    with step:
        refused(step.train, x, y)
        refused(step.predict, x)
        refused(step.gradients, x, y)
        refused(step.state_dict)


CHECK = Check(read, change_bundle(SEPARATOR, change_json, change_tensors))
