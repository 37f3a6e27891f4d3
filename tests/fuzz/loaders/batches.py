"""Batches in .npz files, and the files of a cache of features."""

from __future__ import annotations

from pathlib import Path
from random import Random
from types import SimpleNamespace

from gfcompile.frontend.batch_file import read_batch
from gfcompile.runtime.feature_cache import FeatureCache
from tests.fuzz.check import Check, refused
from tests.fuzz.mutate import change_json, change_npy, change_zip

FOLDER = Path("cache")


def read(data: bytes) -> None:
    Path("a.npz").write_bytes(data)
    refused(read_batch, Path("a.npz"))
    refused(read_batch, Path("a.npz"), 1)
    if not FOLDER.is_dir():
        open_cache().close()
    for name in ("cache.json", "known.npy", "feature0.npy"):
        whole = (FOLDER / name).read_bytes()
        (FOLDER / name).write_bytes(data)
        cache = refused(open_cache)
        if cache is not None:
            refused(cache.missing, [0, 2])
            cache.close()
        (FOLDER / name).write_bytes(whole)


def open_cache() -> FeatureCache:
    tensors = [{"name": "feature0", "shape": [2, 3], "dtype": "float32"}]
    step = SimpleNamespace(manifest={"features": {"fingerprint": "f", "tensors": tensors}, "batch": 2})
    return FeatureCache(step, FOLDER, 3, "float32")  # type: ignore[arg-type]


def change(data: bytes, random: Random) -> bytes:
    if data.startswith(b"PK"):
        return change_zip(change_npy)(data, random)
    return change_npy(data, random) if data.startswith(b"\x93") else change_json(data, random)


CHECK = Check(read, change)
