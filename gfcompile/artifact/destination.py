"""Where an artifact may be written: asked before anything is loaded, so it imports little."""

from __future__ import annotations

import tempfile
from pathlib import Path

from gfcompile.errors import UserError
from gfcompile.settings.words import option


def check_destination(out: Path) -> None:
    """Refuse early what could not be written at the end."""
    if not out.name.isidentifier():
        raise UserError(
            f"{option('out', str(out))}: '{out.name}' is not a Python module name; use letters, digits and _, it"
            " will be imported"
        )
    if out.exists() and not (out / "manifest.json").is_file() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{option('out', str(out))}: exists and is not an artifact; choose another folder or remove it")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out.parent):
            pass
    except OSError as error:
        raise UserError(
            f"{option('out', str(out))}: cannot write there ({error.strerror}); choose another folder"
        ) from error
