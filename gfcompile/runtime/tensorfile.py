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

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class TensorFile:
    """The tensors are read-only views into the mapped file: copy what must outlive a change of it."""

    tensors: dict[str, Array]
    metadata: dict[str, str]
    table: dict[str, Any]
    data: memoryview

    def checksum(self) -> str:
        """Over everything but the checksum itself, so that a flipped bit in names or metadata is seen as well."""
        return _checksum(self.table, self.metadata, [self.data])


def map_file(path: Path) -> memoryview:
    """The bytes of a file, mapped and not read: weights need not fit twice into a board's memory."""
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def read(path: str | os.PathLike[str]) -> TensorFile:
    """Read a safetensors file; anything else is a `StepError` that starts with the path."""
    path = Path(path)
    try:
        content = map_file(path)
    except OSError as error:
        raise StepError(f"'{path}': cannot be read: {error.strerror}; check the path") from error
    try:
        return parse(content)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = error if isinstance(error, StepError) else "its header is damaged"
        raise StepError(f"'{path}': not a whole safetensors file: {reason}; use another copy") from error


def parse(content: memoryview) -> TensorFile:
    """Split a file's bytes into tensors; a malformed header may raise any of the errors that `read` translates."""
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
    return TensorFile({name: tensors[name] for name in table}, metadata, table, data)


def write(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Array],
    metadata: Mapping[str, str] | None = None,
    checksum: bool = False,
) -> None:
    """Write a safetensors file atomically: `path` holds the old content or the new, never a part.

    `checksum` adds the metadata key "sha256". Raises OSError, leaving no temporary file behind.
    """
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
    words = dict(metadata or {})
    if checksum:
        words["sha256"] = _checksum(table, words, chunks)
    header = json.dumps({"__metadata__": words, **table} if words else table).encode()
    header += b" " * (-len(header) % 8)
    write_atomically(Path(path), [len(header).to_bytes(8, "little"), header, *chunks])


def write_atomically(path: Path, chunks: Iterable[bytes | memoryview]) -> None:
    """Temporary file in the same folder, fsync, rename over `path`, fsync of the folder."""
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
    return hashlib.sha256(content).hexdigest()


def _checksum(table: Mapping[str, Any], metadata: Mapping[str, str], chunks: Iterable[memoryview]) -> str:
    words = {key: value for key, value in metadata.items() if key != "sha256"}
    digest = hashlib.sha256(json.dumps([table, words], sort_keys=True).encode())
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()
