"""Checkpoints: trained parameters, optimizer state and buffers in logical layout, in one checksummed safetensors file.

They fit every compilation of the same trained parameters over the same frozen weights, whatever target, r or layout.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path

from . import tensorfile
from .errors import StepError
from .state import State, fits
from .tensorfile import Array

FORMAT = "gfcompile-checkpoint-1"
ROLES = ("parameter", "optimizer", "buffer")


def compatible_key(state: State) -> str:
    """Names and shapes of the trained parameters."""
    rows = sorted([name, list(entry["shape"])] for _, name, entry in state.items("parameter"))
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def save(path: str | os.PathLike[str], state: State, frozen_key: str, build_id: str, steps: int, lr: float) -> None:
    """Write all of the state or, failing, leave the old file as it was."""
    tensors = {f"{role}/{name}": state.get(role, name) for role, name, _ in state.items(*ROLES)}
    metadata = {
        "format": FORMAT,
        "build_id": build_id,
        "compatible": compatible_key(state),
        "frozen": frozen_key,
        "steps": str(steps),
        "lr": repr(lr),
    }
    try:
        tensorfile.write(path, tensors, metadata, checksum=True)
    except OSError as error:
        raise StepError(
            f"save_checkpoint: '{os.fspath(path)}' cannot be written: {error.strerror or error};"
            " an older checkpoint there is untouched; choose another place"
        ) from error


def load(path: str | os.PathLike[str], state: State, frozen_key: str) -> tuple[Mapping[str, Array], int, float]:
    """Read and verify everything; the caller then applies it with `apply`."""
    where = f"load_checkpoint: '{Path(path)}'"
    try:
        file = tensorfile.read(path)
    except StepError as error:
        raise StepError(f"load_checkpoint: {error}") from error
    words = file.metadata
    if words.get("format") != FORMAT:
        raise StepError(f"{where}: not a checkpoint of a compiled step; pass a file that save_checkpoint wrote")
    if words.get("sha256") != file.checksum():
        raise StepError(f"{where}: its content does not match its checksum; use another copy")
    if words.get("compatible") != compatible_key(state):
        raise StepError(f"{where}: made by a step that trains other parameters; compile the same plan, or train anew")
    wanted = {f"{role}/{name}": entry for role, name, entry in state.items(*ROLES)}
    for name in sorted(wanted.keys() ^ file.tensors.keys()):
        what = "has no" if name in wanted else "has an unexpected"
        raise StepError(f"{where}: {what} tensor '{name}'; compile with the same optimizer and batchnorm")
    for name, entry in wanted.items():
        if not fits(entry, file.tensors[name]):
            found = file.tensors[name]
            raise StepError(
                f"{where}: tensor '{name}' is {found.dtype} {found.shape},"
                f" expected {entry['dtype']} {tuple(entry['shape'])}; compile the same plan"
            )
    if words.get("frozen") != frozen_key:
        raise StepError(f"{where}: made over other frozen weights; compile the model it was trained from")
    try:
        steps, lr = int(words["steps"]), float(words["lr"])
    except (KeyError, ValueError) as error:
        raise StepError(f"{where}: its step count or lr is damaged; use another copy") from error
    if steps < 0 or not math.isfinite(lr):
        raise StepError(f"{where}: its step count or lr is damaged; use another copy")
    return file.tensors, steps, lr


def apply(tensors: Mapping[str, Array], state: State) -> None:
    for role, name, _ in state.items(*ROLES):
        state.set(role, name, tensors[f"{role}/{name}"])
