"""Safetensors files with numpy and the standard library: read, checksum, write atomically."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .errors import StepError

DTYPES: dict[str, str] = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64",
    "F16": "float16", "F32": "float32", "F64": "float64",
}  # fmt: skip
CODES = {name: code for code, name in DTYPES.items()}

SEAL = b'{"__metadata__": {"sha256": "'  # what the header of a sealed file begins with: the digits follow
ZEROS = b"0" * 64

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class TensorFile:
    """The tensors are read-only views into the mapped file: copy what must outlive a change of it."""

    tensors: dict[str, Array]
    metadata: dict[str, str]
    content: memoryview

    def is_sealed(self) -> bool:
        """Was it written by `seal`, and is every byte of it as it was?"""
        start = 8 + len(SEAL)
        return self.content[8:start] == SEAL and is_sealed(self.content, start)


def map_file(path: Path) -> memoryview:
    """The bytes of a file, mapped and not read: weights need not fit twice into a board's memory."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO would wait for a writer
    try:
        if os.fstat(file).st_size == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(file, 0, access=mmap.ACCESS_READ))
    finally:
        os.close(file)


def read(path: str | os.PathLike[str]) -> TensorFile:
    """Read a safetensors file; anything else is a `StepError` that starts with the path."""
    path = Path(path)
    try:
        content = map_file(path)
    except OSError as error:
        raise StepError(f"'{path}': cannot be read: {error.strerror}; check the path") from error
    return parse_file(path, content)


def parse_file(path: Path, content: memoryview) -> TensorFile:
    """The content of the file at `path`, taken apart."""
    try:
        return parse(content)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        reason = error if isinstance(error, StepError) else "its header is damaged"
        raise StepError(f"'{path}': not a whole safetensors file: {reason}; use another copy") from error


def parse(content: memoryview) -> TensorFile:
    """Split a file's bytes into tensors; a malformed header may raise any of what `parse_file` translates."""
    if len(content) < 8:
        raise StepError(f"{len(content)} bytes are no header")
    length = int.from_bytes(content[:8], "little")
    if length > len(content) - 8:
        raise StepError(f"its header says {length} bytes, {len(content) - 8} are there")
    table = json.loads(bytes(content[8 : 8 + length]))
    metadata = {str(key): str(value) for key, value in table.pop("__metadata__", {}).items()}
    data = content[8 + length :]
    tensors, end = {}, 0
    for name, entry in sorted(table.items(), key=lambda item: item[1]["data_offsets"]):
        start, stop = entry["data_offsets"]
        if entry["dtype"] not in DTYPES:
            raise StepError(f"tensor '{name}' has dtype {entry['dtype']}")
        dtype, shape = np.dtype(DTYPES[entry["dtype"]]), tuple(entry["shape"])
        count = int(np.prod(shape, dtype=np.int64))
        if start != end or count < 0 or stop - start != count * dtype.itemsize:
            raise StepError(f"tensor '{name}' does not fit its place")
        if stop > len(data):
            raise StepError(f"truncated inside tensor '{name}'")
        tensors[name] = np.frombuffer(data[start:stop], dtype).reshape(shape)
        end = stop
    if end != len(data):
        raise StepError(f"{len(data) - end} bytes follow its last tensor")
    return TensorFile({name: tensors[name] for name in table}, metadata, content)


def write(
    path: str | os.PathLike[str], tensors: Mapping[str, Array], metadata: Mapping[str, str] | None = None
) -> None:
    """Write a safetensors file atomically: `path` holds the old content or the new, never a part.

    Raises OSError, leaving no temporary file behind.
    """
    write_atomically(Path(path), encode(tensors, metadata or {}))


def encode(tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> list[bytes | memoryview]:
    """A safetensors file in pieces: its header, then the tensors."""
    table: dict[str, Any] = {}
    chunks: list[memoryview] = []
    end = 0
    for name, value in tensors.items():
        array = np.asarray(value, order="C")
        if array.dtype.name not in CODES:
            raise StepError(f"tensor '{name}': dtype {array.dtype} cannot be stored; use one of {', '.join(CODES)}")
        table[name] = {
            "dtype": CODES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [end, end + array.nbytes],
        }
        chunks.append(array.astype(array.dtype.newbyteorder("<"), copy=False).reshape(-1).view(np.uint8).data)
        end += array.nbytes
    header = json.dumps({"__metadata__": dict(metadata), **table} if metadata else table).encode()
    header += b" " * (-len(header) % 8)
    return [len(header).to_bytes(8, "little") + header, *chunks]


def seal(tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> list[bytes | memoryview]:
    """A file with a checksum: SHA-256 over the whole of it, the 64 digits of the checksum itself taken as zeros.

    They are the first thing in the header, so that a reader knows where they stand before it understands a word.
    """
    header, *data = encode(tensors, {"sha256": ZEROS.decode(), **metadata})
    digest = hashlib.sha256(header)
    for chunk in data:
        digest.update(chunk)
    start = 8 + len(SEAL)
    sealed = bytes(header[:start]) + digest.hexdigest().encode() + bytes(header[start + len(ZEROS) :])
    return [sealed, *data]


def write_atomically(path: Path, chunks: Iterable[bytes | memoryview]) -> None:
    """Temporary file in the same folder, fsync, rename over `path`, fsync of the folder.

    A link that somebody has put at `path` is replaced, and what it leads to stays as it is.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def sha256(content: memoryview | bytes) -> str:
    """The digest, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def checksum(content: memoryview, start: int) -> str:
    """SHA-256 of a file that holds its own checksum: the 64 digits from `start` on are taken as zeros."""
    digest = hashlib.sha256(content[:start])
    digest.update(ZEROS)
    digest.update(content[start + len(ZEROS) :])
    return digest.hexdigest()


def is_sealed(content: memoryview, start: int) -> bool:
    """Is the checksum from `start` on that of the content?"""
    return content[start : start + len(ZEROS)] == checksum(content, start).encode()
