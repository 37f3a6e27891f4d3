"""Objects of the runtime's C, the same for every step: compiled once by each compiler, kept in the user's cache."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from gfcompile.codegen.forks import count_jobs

if TYPE_CHECKING:
    from hashlib import _Hash

LONGEST = 3600  # seconds that a write may take: what lies there longer unfinished belongs to a process that was killed
_CACHE = "GFCOMPILE_CACHE"
_UNFINISHED = "tmp"


def compile_once(command: Sequence[str], identity: str, sources: Sequence[Path], headers: Sequence[Path]) -> list[Path]:
    """The objects of `sources` by `command`, a compiler with its options; `identity` is which compiler that is.

    Raises CalledProcessError with the compiler's words. Where no cache can be written, OSError.
    """
    digest = hashlib.sha256("\0".join([identity, *command]).encode())
    for path in headers:
        digest.update(f"{path.name}\0".encode() + path.read_bytes())
    with ThreadPoolExecutor(count_jobs()) as threads:
        return list(threads.map(lambda source: _compile(source, command, digest.copy()), sources))


def _compile(source: Path, command: Sequence[str], digest: _Hash) -> Path:
    digest.update(f"{source.name}\0".encode() + source.read_bytes())
    folder = cache_folder("objects") / digest.hexdigest()
    if not folder.is_dir():
        _fill(folder, command, source)
    return folder / f"{source.stem}.o"


def cache_folder(kind: str) -> Path:
    """For one kind of things in $GFCOMPILE_CACHE, or in the place that the desktop's rules name."""
    chosen, shared = os.environ.get(_CACHE), os.environ.get("XDG_CACHE_HOME")
    if chosen:
        return Path(chosen) / kind
    return (Path(shared) if shared else Path.home() / ".cache") / "gfcompile" / kind


def _fill(folder: Path, command: Sequence[str], source: Path) -> None:
    """In a folder beside, moved into place when it is whole: other processes may be doing the same."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    _sweep(folder.parent)
    with tempfile.TemporaryDirectory(prefix=_UNFINISHED, dir=folder.parent) as scratch:
        place = Path(scratch) / "objects"
        place.mkdir()
        arguments = [*command, "-c", str(source), "-o", str(place / f"{source.stem}.o")]
        subprocess.run(arguments, capture_output=True, text=True, check=True)
        try:
            place.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was first, with the same object
                raise


def _sweep(cache: Path) -> None:
    """Remove what killed processes left unfinished."""
    oldest = time.time() - LONGEST
    for left in cache.glob(f"{_UNFINISHED}*"):
        with contextlib.suppress(OSError):  # another process removed it
            if left.stat().st_mtime < oldest:
                shutil.rmtree(left)
