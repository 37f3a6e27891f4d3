"""Files that are replaced so that a kill at any moment leaves a whole one: the newest, and the one before.

`gf_generations.c` does the same, with the same names.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterable
from pathlib import Path


def previous_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.previous")


def replace(path: Path, chunks: Iterable[bytes | memoryview], is_whole: Callable[[Path], bool]) -> None:
    """Write a temporary file, bring it to the disk, and give it the path; a whole file there becomes the previous one.

    Raises OSError with the old files untouched; BlockingIOError if another process is writing the same path.
    """
    temporary = path.with_name(f".{path.name}.tmp")  # one name: what a kill leaves is written over, not collected
    file = _open_locked(temporary)
    try:
        for chunk in chunks:
            _write(file, chunk)
        os.fsync(file)
        if is_whole(path):
            _keep(path, previous_of(path))
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(file)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _open_locked(temporary: Path) -> int:
    while True:
        file = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            _lock(file)
            if _is_at(file, temporary):
                os.ftruncate(file, 0)
                return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)  # another writer has just moved that file to its place


def _lock(file: int) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return  # a file system without locks has to do


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _write(file: int, chunk: bytes | memoryview) -> None:
    left = memoryview(chunk).cast("B")
    while left:
        left = left[os.write(file, left) :]


def _keep(path: Path, previous: Path) -> None:
    """At every moment there is a file at `path` or, where the file system knows no links (FAT), at `previous`."""
    previous.unlink(missing_ok=True)
    try:
        os.link(path, previous)
    except OSError as error:
        if error.errno == errno.ENOENT:
            return
        os.replace(path, previous)
