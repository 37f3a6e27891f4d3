"""An artifact's folder: its manifest, which begins with a checksum of itself, and the content hashes of its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from . import schema, tensorfile
from .errors import StepError

FORMAT = 2
UNSEALED = 1  # the format before: without the checksum
MANIFEST = "manifest.json"
WEIGHTS = "weights.safetensors"
CONSTANTS = "constants.safetensors"
SELFTEST = "selftest.safetensors"  # may be left out of a copy: only `gf-train --selftest` reads it
TRAINER = "gf-train"  # may be left out too: it looks at its own file
AGAIN = "recompile, or copy the artifact again"
SEAL = b'{\n "sha256": "'  # what the text begins with: the digits follow
CHECKSUM = "sha256"


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """The only way to write one: its first entry is SHA-256 over the whole text, these 64 digits taken as zeros."""
    entries = {CHECKSUM: tensorfile.ZEROS.decode(), **{k: v for k, v in manifest.items() if k != CHECKSUM}}
    text = (json.dumps(entries, indent=1) + "\n").encode()
    digits = tensorfile.checksum(memoryview(text), len(SEAL)).encode()
    (folder / MANIFEST).write_bytes(text[: len(SEAL)] + digits + text[len(SEAL) + len(digits) :])


def read_manifest(folder: Path) -> dict[str, Any]:
    """Its entries, the checksum left out. The checksum is looked at before a word is believed, then all that any
    reader takes from it: see schema.py."""
    path = folder / MANIFEST
    try:
        text = path.read_bytes()
    except FileNotFoundError as error:
        raise StepError(f"'{folder}': no manifest.json there; pass the folder that gfcompile wrote") from error
    except OSError as error:
        raise StepError(f"'{path}': cannot be read: {error.strerror}; check the path") from error
    is_sealed = text.startswith(SEAL)
    if is_sealed and not tensorfile.is_sealed(memoryview(text), len(SEAL)):
        raise StepError(f"'{path}': its content does not match its checksum; {AGAIN}")
    try:
        manifest = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise StepError(f"'{path}': is damaged; {AGAIN}") from error
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if type(found) is not int or found not in (UNSEALED, FORMAT):
        raise StepError(
            f"'{path}': format {schema.show(found)}, this runtime reads formats {UNSEALED} and {FORMAT};"
            " recompile the artifact"
        )
    if found == FORMAT and not is_sealed:
        raise StepError(f"'{path}': has no checksum; {AGAIN}")
    fault = schema.find_fault(manifest)
    if fault is not None:
        raise StepError(f"'{path}': {fault}; {AGAIN}")
    return {key: value for key, value in manifest.items() if key != CHECKSUM}


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
    return tensorfile.parse_file(folder / name, check_file(folder, manifest, name)).tensors
