"""Our safetensors reader and writer against the reference implementation."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from gfcompile.runtime import tensorfile
from gfcompile.runtime.errors import StepError

TENSORS = {
    "scalar": np.array(3, np.int64),
    "empty": np.zeros((0, 2), np.float32),
    "flags": np.array([True, False, True]),
    "strided": np.arange(12, dtype=np.float64).reshape(3, 4).T,
    **{dtype: np.arange(5).astype(dtype) for dtype in ("uint8", "int8", "int16", "int32", "float16", "float32")},
}


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b)


def test_reads_back_what_it_wrote(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    tensorfile.write(path, TENSORS, {"key": "välue"})
    found = tensorfile.read(path)
    assert list(found.tensors) == list(TENSORS)
    assert all(same(found.tensors[name], value) for name, value in TENSORS.items())
    assert found.metadata == {"key": "välue"}
    assert not found.is_sealed()


def test_a_seal_is_the_hash_of_the_file_with_zeros_for_it(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    path.write_bytes(b"".join(tensorfile.seal(TENSORS, {"key": "välue"})))
    found = tensorfile.read(path)
    assert found.is_sealed()
    digits = found.metadata["sha256"].encode()
    assert hashlib.sha256(path.read_bytes().replace(digits, b"0" * 64)).hexdigest().encode() == digits


def test_the_reference_implementation_agrees(tmp_path: Path) -> None:
    reference = pytest.importorskip("safetensors.numpy")
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    tensorfile.write(ours, TENSORS)
    contiguous = {name: np.array(value, order="C") for name, value in TENSORS.items()}
    reference.save_file(contiguous, theirs, {"by": "them"})
    assert all(same(value, TENSORS[name]) for name, value in reference.load_file(ours).items())
    found = tensorfile.read(theirs)
    assert found.metadata == {"by": "them"}
    assert all(same(found.tensors[name], value) for name, value in TENSORS.items())


def test_a_dtype_that_cannot_be_stored(tmp_path: Path) -> None:
    with pytest.raises(StepError) as caught:
        tensorfile.write(tmp_path / "t", {"a": np.zeros(1, np.complex64)})
    assert str(caught.value).startswith("tensor 'a': dtype complex64 cannot be stored; use one of bool, uint8")
    assert not list(tmp_path.iterdir())
