"""The idx format of the MNIST family: a magic number, big-endian extents, then the bytes. Unsigned bytes only."""

import gzip
import struct
from pathlib import Path

import numpy as np

UBYTE = 0x08


def encode_idx(array: np.ndarray) -> bytes:
    if array.dtype != np.uint8:
        raise TypeError(f"idx: dtype '{array.dtype}' is not uint8")
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, UBYTE, array.ndim, *array.shape)
    return header + array.tobytes()


def decode_idx(payload: bytes) -> np.ndarray:
    zero_a, zero_b, kind, rank = struct.unpack_from(">BBBB", payload)
    if (zero_a, zero_b, kind) != (0, 0, UBYTE):
        raise ValueError(f"idx: magic {payload[:4].hex()} is not that of unsigned bytes")
    shape = struct.unpack_from(f">{rank}I", payload, 4)
    return np.frombuffer(payload, np.uint8, offset=4 + 4 * rank).reshape(shape)


def read_idx(path: Path) -> np.ndarray:
    return decode_idx(gzip.decompress(path.read_bytes()))


def write_idx(path: Path, array: np.ndarray) -> None:
    # mtime=0 and no file name in the gzip header: the same array always gives the same file (for one zlib).
    path.write_bytes(gzip.compress(encode_idx(array), compresslevel=9, mtime=0))
