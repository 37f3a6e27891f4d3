"""Batches in .npz files: a damaged archive is a refusal, whatever zip and NumPy make of it."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

from gfcompile.errors import UserError
from gfcompile.frontend.batch_file import read_batch

HOW = "write it with numpy.savez(path, x=..., y=...)"


def damage(content: bytes, what: str) -> bytes:
    if what == "empty":  # EOFError
        return b""
    if what == "cut":  # BadZipFile
        return content[:-30]
    if what == "encrypted":  # RuntimeError
        at = content.index(b"PK\x01\x02") + 8
        return content[:at] + b"\x01" + content[at + 1 :]
    return content.replace(b"'shape': (2,)", b"'shape': (3,)")  # BadZipFile, for its CRC


@pytest.mark.parametrize("what", ["empty", "cut", "encrypted", "changed"])
def test_a_damaged_archive(tmp_path: Path, what: str) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=np.zeros(2, np.float32), y=np.zeros(2, np.int64))
    path.write_bytes(damage(path.read_bytes(), what))
    with pytest.raises(UserError) as caught:
        read_batch(path)
    assert str(caught.value) == f"--data {path}: not a readable .npz file; {HOW}"


def test_a_member_that_is_no_array(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x.npy", b"some words")
    with pytest.raises(UserError) as caught:
        read_batch(path)
    assert str(caught.value) == f"--data {path}: 'x' in it is no array; {HOW}"
