"""Manifests changed on purpose, with the checksum of somebody who knows how to make one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gfcompile.runtime.manifest import MANIFEST, write_manifest
from gfcompile.runtime.tensorfile import sha256


def manifest_of(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / MANIFEST).read_text()))


def edit_manifest(folder: Path, **changes: Any) -> None:
    write_manifest(folder, {**manifest_of(folder), **changes})


def list_anew(folder: Path, name: str) -> None:
    """Another content of this file is what was compiled."""
    edit_manifest(folder, files={**manifest_of(folder)["files"], name: sha256((folder / name).read_bytes())})
