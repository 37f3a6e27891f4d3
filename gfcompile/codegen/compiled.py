"""Objects of the runtime's C, the same for every step: compiled once by each compiler, kept in the user's cache."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

_CACHE = "GFCOMPILE_CACHE"


def compile_once(command: Sequence[str], identity: str, sources: Sequence[Path], headers: Sequence[Path]) -> list[Path]:
    """The objects of `sources` by `command`, a compiler with its options; `identity` is which compiler that is.

    Raises CalledProcessError with the compiler's words. Where no cache can be written, OSError.
    """
    digest = hashlib.sha256("\0".join([identity, *command]).encode())
    for path in (*sources, *headers):
        digest.update(f"{path.name}\0".encode() + path.read_bytes())
    folder = cache_folder() / digest.hexdigest()
    if not folder.is_dir():
        _fill(folder, command, sources)
    return [folder / f"{source.stem}.o" for source in sources]


def cache_folder() -> Path:
    """$GFCOMPILE_CACHE, or the place that the desktop's rules name."""
    chosen = os.environ.get(_CACHE)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return (Path(chosen) if chosen else Path(base) / "gfcompile") / "objects"


def _fill(folder: Path, command: Sequence[str], sources: Sequence[Path]) -> None:
    """In a folder beside, moved into place when it is whole: other processes may be doing the same."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        place = Path(scratch) / "objects"
        place.mkdir()
        for source in sources:  # one by one: zig takes several, and leaves one object
            arguments = [*command, "-c", str(source), "-o", str(place / f"{source.stem}.o")]
            subprocess.run(arguments, capture_output=True, text=True, check=True)
        try:
            place.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was first, with the same objects
                raise
