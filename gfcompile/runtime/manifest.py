"""Reading an artifact's folder: its manifest, and the content hashes of its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from . import tensorfile
from .errors import StepError

FORMAT = 1
WEIGHTS = "weights.safetensors"
CONSTANTS = "constants.safetensors"
SELFTEST = "selftest.safetensors"  # may be left out of a copy: only `gf-train --selftest` reads it
AGAIN = "recompile, or copy the artifact again"


def read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / "manifest.json"
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise StepError(f"'{folder}': no manifest.json there; pass the folder that gfcompile wrote") from error
    except OSError as error:
        raise StepError(f"'{path}': cannot be read: {error.strerror}; check the path") from error
    except ValueError as error:
        raise StepError(f"'{path}': is damaged; {AGAIN}") from error
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if found != FORMAT:
        raise StepError(f"'{path}': format {found!r}, this runtime reads format {FORMAT}; recompile the artifact")
    return dict(manifest)


def check_file(folder: Path, manifest: dict[str, Any], name: str) -> memoryview:
    """The mapped content of a file whose hash is the manifest's."""
    path = folder / name
    try:
        content = tensorfile.map_file(path)
    except FileNotFoundError as error:
        raise StepError(f"'{path}': is missing; {AGAIN}") from error
    except OSError as error:
        raise StepError(f"'{path}': cannot be read: {error.strerror}; {AGAIN}") from error
    if tensorfile.sha256(content) != manifest["files"].get(name):
        raise StepError(f"'{path}': its content is not what was compiled (truncated or changed); {AGAIN}")
    return content


def read_tensors(folder: Path, manifest: dict[str, Any], name: str) -> dict[str, tensorfile.Array]:
    """The tensors of a file, hash-checked at every reading: what is handed out is what was compiled."""
    if name not in manifest["files"]:
        return {}
    return tensorfile.parse(check_file(folder, manifest, name)).tensors
