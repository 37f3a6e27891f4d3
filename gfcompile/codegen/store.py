"""What earlier compiles made, by the content it was made from: kernels' objects, and what is known of their schedules.

An entry is a file that is written beside and moved into place, with a checksum before its content: processes may read
and write at the same time and be killed at any moment, and a damaged entry is as good as none. Nothing depends on the
store but time: where it cannot be written, as on a full disk, everything is made again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gfcompile.codegen.compiled import LONGEST, cache_folder
from gfcompile.errors import UserError
from gfcompile.settings.text import read_bytes

LIMIT = "GFCOMPILE_CACHE_LIMIT"
DEFAULT_LIMIT = "512MB"
KEPT = 0.8  # of the limit, after some had to go: so that not every compile has to look for what is old
UNSEEN = 0.1  # of the limit, that a process writes between one look at all there is and the next
_CHECKSUM = hashlib.sha256().digest_size
_UNFINISHED = ".new."


def open_store() -> Store:
    """The user's, of as many bytes as $GFCOMPILE_CACHE_LIMIT allows; 0 is none at all."""
    given = os.environ.get(LIMIT) or DEFAULT_LIMIT
    try:
        limit = read_bytes(given) if given != "0" else 0
    except ValueError as error:
        raise UserError(f"{LIMIT}={given}: {error}, or 0 to keep nothing") from error
    return Store(cache_folder("kernels"), limit, is_open=limit > 0)


@dataclass
class Store:
    """Entries by key, in a folder of at most so many bytes once it was trimmed. Those used last stay.

    Who writes trims: at its first entry and now and then. Who only reads never looks at what else there is, nor does a
    forked copy: its parent writes too.
    """

    folder: Path
    limit: int
    is_open: bool = True
    _unseen: float = field(default=0, repr=False)  # bytes to write before the next look
    _owner: int = field(default_factory=os.getpid, repr=False)

    def read(self, key: str) -> bytes | None:
        """What was kept under this key, whole."""
        if not self.is_open:
            return None
        path = self._place(key)
        try:
            kept = path.read_bytes()
        except OSError:  # it is not there, or cannot be read: then it is made again
            return None
        content = kept[_CHECKSUM:]
        if hashlib.sha256(content).digest() != kept[:_CHECKSUM]:
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return content

    def holds(self, key: str) -> bool:
        """Whether there is something that we may read, as far as can be told without reading it."""
        return self.is_open and os.access(self._place(key), os.R_OK)

    def write(self, key: str, content: bytes) -> None:
        """Keep it. The first failure ends that: the disk is full, or not for us to write on."""
        if not self.is_open:
            return
        path, unfinished = self._place(key), None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, unfinished = tempfile.mkstemp(prefix=_UNFINISHED, dir=path.parent)
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(content).digest() + content)
            self._unseen -= _bytes_on_disk(os.stat(unfinished))
            Path(unfinished).replace(path)
        except OSError:
            self.is_open = False
            if unfinished is not None:
                with contextlib.suppress(OSError):
                    Path(unfinished).unlink()
        if self._unseen < 0 and os.getpid() == self._owner:
            self._unseen = self.limit * UNSEEN
            self.trim()

    def trim(self) -> None:
        """Remove what was not used for longest until the limit holds, and what killed processes left unfinished."""
        if not self.is_open:
            return
        found = sorted(self._entries())
        total = sum(size for _, size, _ in found)
        goal = self.limit * KEPT if total > self.limit else total
        oldest = time.time() - LONGEST
        for when, size, path in found:
            is_left_over = path.name.startswith(_UNFINISHED) and when < oldest
            if total > goal or is_left_over:
                with contextlib.suppress(OSError):  # another process removed it
                    path.unlink()
                total -= size

    def _place(self, key: str) -> Path:
        return self.folder / key[:2] / key

    def _entries(self) -> Iterator[tuple[float, int, Path]]:
        """(last use, bytes, file)"""
        with contextlib.suppress(OSError):  # the folder was removed meanwhile: then there is nothing to trim
            for path in self.folder.glob("*/*"):
                with contextlib.suppress(OSError):
                    status = path.stat()
                    yield status.st_mtime, _bytes_on_disk(status), path


def _bytes_on_disk(status: os.stat_result) -> int:
    """The disk gives whole blocks, to what is known of a schedule 4 KB for 100 bytes."""
    return max(status.st_size, status.st_blocks * 512)


NO_STORE = Store(Path(), 0, is_open=False)
