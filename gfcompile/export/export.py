"""The trained model out of an artifact as an ONNX file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

from gfcompile.errors import UserError
from gfcompile.export.trained import unwritable
from gfcompile.export.writer import UNTRANSLATED
from gfcompile.frontend.onnx.write_back import fill
from gfcompile.runtime import tensorfile
from gfcompile.runtime.manifest import check_file

MODEL = "model.onnx"  # in an artifact: the model without its weights
Weights = Mapping[str, np.ndarray]


def write_trained_model(folder: Path, manifest: dict[str, Any], state: Weights, path: Path) -> None:
    """Fill the artifact's model with the weights; the file holds the old content or the new, never a part."""
    if MODEL not in manifest["files"]:
        raise UserError(f"{folder}: holds no {MODEL}; compile again")
    skeleton = bytes(check_file(folder, manifest, MODEL))
    lacking = {entry.key: entry.value for entry in ModelProto.FromString(skeleton).metadata_props}.get(UNTRANSLATED)
    if lacking is not None:
        listing = ", ".join(json.loads(lacking))
        raise UserError(f"{folder}: no ONNX form is known of its {listing}; export the weights with --state-dict")
    try:
        tensorfile.write_atomically(path, [fill(skeleton, state).SerializeToString()])
    except OSError as error:
        raise unwritable(path, error) from error
