"""Trained weights out of files alone: an artifact and a checkpoint, whatever machine the artifact was compiled for."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gfcompile.errors import UserError
from gfcompile.runtime import checkpoint as checkpoints
from gfcompile.runtime import tensorfile
from gfcompile.runtime.manifest import WEIGHTS, read_manifest, read_tensors
from gfcompile.runtime.state import merge
from gfcompile.runtime.tensorfile import Array


@dataclass(frozen=True)
class Trained:
    """`state` is the model's whole state_dict; `warning` says why an older checkpoint was taken, if one was."""

    folder: Path
    manifest: dict[str, Any]
    state: dict[str, Array]
    steps: int
    warning: str | None


def read_trained(source: Path, checkpoint: Path | None, artifact: Path | None) -> Trained:
    """`source` is an artifact, whose checkpoint may be given too, or a checkpoint, whose artifact may."""
    if source.is_dir():
        if artifact is not None:
            raise UserError(f"--artifact {artifact}: '{source}' is an artifact already; name a checkpoint before it")
        folder = source
    else:
        if checkpoint is not None:
            raise UserError(
                f"--checkpoint {checkpoint}: '{source}' is a checkpoint already; name an artifact before it"
            )
        checkpoint, folder = source, artifact if artifact is not None else _find_artifact(source)
    manifest = read_manifest(folder)
    weights = read_tensors(folder, manifest, WEIGHTS)
    if checkpoint is None:
        return Trained(folder, manifest, merge(manifest, weights, {}), 0, None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = checkpoints.load(checkpoint, manifest)
    trained = {
        entry["name"]: found.tensors[f"{entry['role']}/{entry['name']}"]
        for entry in manifest["state"]
        if entry["role"] in ("parameter", "buffer")
    }
    warning = str(caught[0].message) if caught else None
    return Trained(folder, manifest, merge(manifest, weights, trained), found.progress.steps, warning)


def write_weights(state: Mapping[str, Array], path: Path) -> None:
    """A safetensors file of the whole state_dict."""
    try:
        tensorfile.write(path, state)
    except OSError as error:
        raise unwritable(path, error) from error


def check_absent(option: str, path: Path | None) -> None:
    """Refuse to write over a file: it may hold weights that took days."""
    if path is not None and os.path.lexists(path):
        raise UserError(f"{option} {path}: exists; choose another name, or remove it first")


def unwritable(path: Path, error: OSError) -> UserError:
    """What to say where a result could not be written."""
    return UserError(f"{path}: cannot be written ({error.strerror or error}); choose another place")


def _find_artifact(checkpoint: Path) -> Path:
    """The folder of the name that the checkpoint was made with, beside it or here."""
    name = checkpoints.artifact_name(checkpoint)
    for folder in (checkpoint.absolute().parent / name, Path(name)):
        if name and (folder / "manifest.json").is_file():
            return folder
    raise UserError(f"{checkpoint}: its artifact '{name}' is not beside it; give --artifact FOLDER")
