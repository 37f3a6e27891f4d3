"""The zip files that torch.save and torch.export.save write, as named records.

One reader for everything that is read of such a file: two readers may see two different files in one.
"""

from __future__ import annotations

import zipfile

from gfcompile.frontend.foreign import MalformedError

ENCRYPTED = 0x1
EXPANDED = 1 << 20  # values of a tensor that repeats those of its record, at most


class Archive:
    """Records by their name below the archive's one folder; those that are read are stored as they are."""

    def __init__(self, path: str) -> None:
        self._zip = zipfile.ZipFile(path)
        self._records: dict[str, zipfile.ZipInfo] = {}
        with open(path, "rb") as file:
            room = file.seek(0, 2)
        for info in self._zip.infolist():
            folder, _, name = info.filename.partition("/")
            if not folder or not name or name in self._records:
                raise MalformedError(f"its record '{info.filename}' is outside its folder or there twice")
            room -= info.compress_size
            self._records[name] = info
        if room < 0:
            raise MalformedError("its records are larger than the file")

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *failure: object) -> None:
        self._zip.close()

    def __contains__(self, name: str) -> bool:
        return name in self._records

    def names(self) -> list[str]:
        """Its records, in the file's order."""
        return list(self._records)

    def read(self, name: str) -> bytearray:
        """A record's bytes, its checksum compared; writable, so that a tensor can lie in them."""
        if name not in self._records:
            raise MalformedError(f"it has no record '{name}'")
        info = self._records[name]
        is_plain = info.compress_type == zipfile.ZIP_STORED and not info.flag_bits & ENCRYPTED
        if not is_plain or info.file_size != info.compress_size:
            raise MalformedError(f"its record '{name}' is compressed")
        return bytearray(self._zip.read(info))


def is_archive(path: str) -> bool:
    """Whether the file begins as a zip does."""
    with open(path, "rb") as file:
        return file.read(4) == b"PK\x03\x04"
