"""Files that are replaced so that a kill at any moment leaves a whole one: the newest, and the one before.

`gf_generations.c` does the same, with the same names.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path

_TRIES = 100


class BusyError(BlockingIOError):
    """Another process is writing the path or, for as long as it trains, holds it; then `holder` may be its number."""

    def __init__(self, holder: int | None = None) -> None:
        super().__init__(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK))
        self.holder = holder


class ObstructedError(OSError):
    """Something has the temporary file's name, and cannot be removed."""


def previous_of(path: Path) -> Path:
    """Where the checkpoint before this one is kept."""
    return path.with_name(f"{path.name}.previous")


def replace(path: Path, chunks: Iterable[bytes | memoryview], is_whole: Callable[[Path], bool]) -> None:
    """Write a temporary file, bring it to the disk, and give it the path; a whole file there becomes the previous one.

    Raises OSError with the old files untouched; BusyError if another process is writing the same path.
    """
    _check_replaceable(path)
    temporary = path.with_name(f".{path.name}.tmp")  # one name: what a kill leaves is removed, not collected
    file = _create(temporary)
    try:
        if _is_locked(path):  # between two temporary files who holds it has the newest generation locked
            raise BusyError
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


def _check_replaceable(path: Path) -> None:
    """A device or a pipe would be replaced by a file."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return  # writing it tells
    if not stat.S_ISREG(mode) and not stat.S_ISLNK(mode):
        reason = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(reason, os.strerror(reason), os.fspath(path))


def _create(temporary: Path) -> int:
    """A locked file. Only one that this very call creates is ever written."""
    for _ in range(_TRIES):
        _clear(temporary)
        try:
            file = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            continue
        if _lock(file, fcntl.LOCK_EX) and _is_at(file, temporary):
            return file
        os.close(file)  # another writer took it for what a kill left
    raise BusyError


def _clear(temporary: Path) -> None:
    """Remove whatever has the name, unless somebody is writing it.

    It is what a kill left, or a link, whose target must never be written.
    """
    try:
        about = temporary.lstat()
    except FileNotFoundError:
        return
    try:
        if stat.S_ISREG(about.st_mode):
            _remove_unlocked(temporary)
        else:
            temporary.unlink()
    except BusyError:
        raise
    except FileNotFoundError:
        return  # just gone: creating it tells
    except OSError as error:
        raise ObstructedError(error.errno, error.strerror, os.fspath(temporary)) from error


def _remove_unlocked(temporary: Path) -> None:
    file = os.open(temporary, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not _lock(file, fcntl.LOCK_EX):
            raise BusyError(_read_holder(file))
        if _is_at(file, temporary):  # else another writer has just moved it to its place
            temporary.unlink()
    finally:
        os.close(file)


def _lock(file: int, how: int) -> bool:
    """False if another process has it locked. A file system without locks has to do."""
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _is_locked(path: Path) -> bool:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _lock(file, fcntl.LOCK_SH)
    finally:
        os.close(file)


def _read_holder(file: int) -> int | None:
    """The number that a holder has written there; None where a checkpoint is being written."""
    text = os.pread(file, 24, 0)
    return int(text) if text.endswith(b"\n") and text[:-1].isdigit() else None


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.lstat())
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
