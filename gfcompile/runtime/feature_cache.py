"""The features of the frozen part of a network, computed once per sample and kept on disk.

A folder: `featureN.npy` with one row per sample, `known.npy` with one number per sample (the checksum of its rows, or 0
where they are not there), and `cache.json` with what they belong to. Rows are on disk before the number that announces
them, so an interruption at any point leaves a cache that is right and lacks at most the samples of one batch. Rows that
the disk has changed are computed again. Several processes may use one cache.
"""

from __future__ import annotations

import json
import math
import operator
import os
import shutil
import tempfile
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import StepError
from .library import aligned_empty
from .tensorfile import Array

if TYPE_CHECKING:
    from .step import Step

FORMAT = "gfcompile-features-2"
HEADER, KNOWN = "cache.json", "known"
STORED = ("float32", "float16")
MOST_SAMPLES = 1 << 32
PRESENT = 1 << 32  # beside a checksum of 32 bits, which may be 0
Load = Callable[[Array], Any]


class FeatureCache:
    """Trains a step on cached features; made by `Step.open_cache`.

    Features are of a sample as it was first seen: a cache is for samples that are the same in every epoch.
    """

    def __init__(self, step: Step, folder: str | os.PathLike[str], samples: int, dtype: str) -> None:
        self._files: dict[str, _Rows] = {}
        self._step = step
        self.folder = Path(folder)
        self.samples = _count(samples)
        if "\0" in str(folder):
            raise StepError(f"open_cache: {str(folder)!r} is no path; choose another folder")
        if dtype not in STORED:
            raise StepError(f"open_cache: dtype {dtype!r} is not known; use {' or '.join(STORED)}")
        self.dtype = dtype
        self._tensors: list[dict[str, Any]] = step.manifest["features"]["tensors"]
        self._batch: int = step.manifest["batch"]
        header = {
            "format": FORMAT,
            "fingerprint": step.manifest["features"]["fingerprint"],
            "samples": self.samples,
            "dtype": dtype,
        }
        try:
            if not (self.folder / HEADER).is_file():
                self._create(header)
            self._check(header)
            for name, (kind, row) in self._layout().items():
                self._files[name] = _Rows(self.folder / f"{name}.npy", kind, (self.samples, *row))
        except OSError as error:
            self.close()
            raise StepError(
                f"open_cache: '{self.folder}' cannot be used: {error.strerror or error}; choose another folder"
            ) from error
        except BaseException:
            self.close()
            raise

    @property
    def known(self) -> int:
        """How many samples have their features here."""
        return int(np.count_nonzero(self._known().read_all(self.samples)))

    def missing(self, indices: Any) -> Array:
        """Those of the indices whose features are not here yet, in ascending order, each once."""
        return self._missing(self._check_indices("missing", indices))

    def train(self, x: Any, y: Any, indices: Any, lr: float | None = None, seed: int | None = None) -> float:
        """`Step.train` for the samples with these indices, on their features; the loss before the update.

        Features that are missing, or damaged, are computed and stored first. For them `x` is the batch, in the order
        of the indices, or a function that gets the missing indices and returns their samples, in that order: once
        every sample is known it is not called any more, and an array may be None.
        """
        asked = self._check_indices("train", indices)
        self._complete(self._missing(asked), x, asked)
        rows = self._read(asked)
        damaged = self._damaged(asked, rows)
        if len(damaged):
            warnings.warn(
                f"train: the features of sample {damaged[0]} were changed on the disk of '{self.folder}';"
                " they are computed again",
                RuntimeWarning,
                stacklevel=2,
            )
            self._complete(damaged, x, asked)
            rows = self._read(asked)
            damaged = self._damaged(asked, rows)
            if len(damaged):
                raise StepError(
                    f"train: '{self.folder}' does not keep the features of sample {damaged[0]}: its disk is failing;"
                    " choose another folder"
                )
        return self._step.train_features(tuple(self._staged(rows)), y, lr, seed)

    def close(self) -> None:
        """Close the files; a second call does nothing."""
        while self._files:
            self._files.popitem()[1].close()

    def __enter__(self) -> FeatureCache:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_files"):
            self.close()

    def _missing(self, asked: Array) -> Array:
        found: Array = np.unique(asked[self._known().read(asked) == 0])
        return found

    def _complete(self, missing: Array, x: Any, asked: Array) -> None:
        """Compute and store the features of these samples."""
        if len(missing):
            self._store(missing, self._step.features(_samples_of(x, missing, asked)))

    def _damaged(self, asked: Array, rows: Mapping[str, Array]) -> Array:
        """Those of the samples whose rows are not what was stored."""
        found: Array = np.unique(asked[self._known().read(asked) != _checksums(rows)])
        return found

    def _known(self) -> _Rows:
        if not self._files:
            raise StepError("this cache is closed; open it again")
        return self._files[KNOWN]

    def _layout(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """File -> the type and the shape of a row."""
        rows = {
            spec["name"]: (self.dtype if spec["dtype"] == "float32" else spec["dtype"], tuple(spec["shape"][1:]))
            for spec in self._tensors
        }
        return {**rows, KNOWN: ("uint64", ())}

    def _create(self, header: dict[str, Any]) -> None:
        """All of it beside the folder, then one rename: there is a whole cache or none."""
        if self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
            raise StepError(
                f"open_cache: '{self.folder}' exists and is no cache of features; choose another folder or remove it"
            )
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=self.folder.parent, prefix=f".{self.folder.name}."))
        try:
            for name, (kind, row) in self._layout().items():
                shape = (self.samples, *row)
                np.lib.format.open_memmap(scratch / f"{name}.npy", mode="w+", dtype=kind, shape=shape)
            (scratch / HEADER).write_text(json.dumps(header, indent=1) + "\n", encoding="utf-8")
            for path in (*scratch.iterdir(), scratch):
                _synchronise(path)
            try:
                scratch.rename(self.folder)
            except OSError:
                if not (self.folder / HEADER).is_file():  # else another process was faster
                    raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _check(self, wanted: dict[str, Any]) -> None:
        where = f"open_cache: '{self.folder}'"
        try:
            found = json.loads((self.folder / HEADER).read_text(encoding="utf-8"))
        except ValueError as error:
            raise StepError(f"{where}: its {HEADER} is damaged; remove the folder") from error
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise StepError(f"{where}: was written by another version; remove the folder, or choose another")
        if found.get("fingerprint") != wanted["fingerprint"]:
            raise StepError(
                f"{where}: holds the features of another model, other weights or another plan; choose another folder"
            )
        for key, words in (("samples", "samples={}"), ("dtype", "dtype='{}'")):
            if found.get(key) != wanted[key]:
                made, asked = words.format(found.get(key)), words.format(wanted[key])
                raise StepError(f"{where}: was made with {made}, not {asked}; pass {made}, or choose another folder")

    def _check_indices(self, call: str, indices: Any) -> Array:
        try:
            array = np.asarray(indices.detach() if hasattr(indices, "detach") else indices)
        except ValueError as error:  # rows of several lengths
            raise StepError(f"{call}: indices are no array; pass a whole number for each sample") from error
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise StepError(
                f"{call}: indices are {array.dtype} of shape {array.shape}; pass a whole number for each sample"
            )
        if not 0 < len(array) <= self._batch:
            raise StepError(f"{call}: {len(array)} indices; pass 1 to {self._batch}, the compiled batch")
        bad = (array < 0) | (array >= self.samples)
        if bad.any():
            last = self.samples - 1
            raise StepError(f"{call}: index {array[bad][0]} is outside 0 to {last}; the cache has {last + 1} samples")
        return array.astype(np.int64)

    def _store(self, indices: Array, features: Sequence[Array]) -> None:
        """The rows, and when they are safe, that they are there."""
        rows = {
            spec["name"]: self._encode(spec, array, indices)
            for spec, array in zip(self._tensors, features, strict=True)
        }
        try:
            for name, array in rows.items():
                self._files[name].write(indices, array)
            self._files[KNOWN].write(indices, _checksums(rows))
        except OSError as error:
            raise StepError(
                f"train: '{self.folder}' cannot be written: {error.strerror or error};"
                " what was cached before is untouched; make room"
            ) from error

    def _encode(self, spec: dict[str, Any], array: Array, indices: Array) -> Array:
        kind = self._files[spec["name"]].kind
        with np.errstate(over="ignore"):
            stored: Array = np.ascontiguousarray(array, dtype=kind)
        if array.dtype.kind == "f" and not np.isfinite(stored).all():
            at = tuple(int(i) for i in np.argwhere(~np.isfinite(stored))[0])
            what = f"train: sample {indices[at[0]]}: a feature is {array[at]}"
            if np.isfinite(array[at]):
                raise StepError(f"{what}, too large for {kind}; open a cache with dtype='float32'")
            raise StepError(f"{what}; repair the sample or leave it out")
        return stored

    def _read(self, indices: Array) -> dict[str, Array]:
        """Rows of the samples as they are stored."""
        return {spec["name"]: self._files[spec["name"]].read(indices) for spec in self._tensors}

    def _staged(self, rows: Mapping[str, Array]) -> Iterator[Array]:
        """In the type and at the alignment that the library wants."""
        for spec in self._tensors:
            stored = rows[spec["name"]]
            staging = aligned_empty(stored.shape, spec["dtype"])
            np.copyto(staging, stored)
            yield staging


class _Rows:
    """A .npy file, read and written through its descriptor.

    Not through a mapping: on a full disk, or once another process has truncated the file, that would kill this one.
    """

    def __init__(self, path: Path, kind: str, shape: tuple[int, ...]) -> None:
        self.kind, self.path = kind, path
        try:
            rows = np.lib.format.open_memmap(path, mode="r")
        except Exception as error:  # numpy reads the header as Python: a damaged one can raise anything
            if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
                raise
            raise StepError(f"open_cache: '{path}' is missing or damaged; remove the folder") from error
        if rows.dtype != kind or rows.shape != shape:
            raise StepError(f"open_cache: '{path}' is {rows.dtype} {rows.shape}, not {kind} {shape}; remove the folder")
        self._row = shape[1:]
        self._start = int(rows.offset)
        self._stride = math.prod(shape[1:]) * rows.dtype.itemsize
        self._descriptor = os.open(path, os.O_RDWR)

    def read(self, indices: Array) -> Array:
        found: Array = np.empty((len(indices), *self._row), self.kind)
        for index, row in zip(indices.tolist(), found.reshape(len(indices), -1), strict=True):
            self._fill(row, index)
        return found

    def read_all(self, count: int) -> Array:
        found: Array = np.empty((count, *self._row), self.kind)
        self._fill(found.reshape(-1), 0)
        return found

    def _fill(self, array: Array, index: int) -> None:
        view, offset = array.data.cast("B"), self._start + index * self._stride
        while view:
            try:
                count = os.preadv(self._descriptor, [view], offset)
            except OSError as error:
                raise StepError(
                    f"train: '{self.path}' cannot be read: {error.strerror}; remove the folder, or restore it"
                ) from error
            if not count:
                raise StepError(f"train: '{self.path}' was truncated while in use; remove the folder, or restore it")
            view, offset = view[count:], offset + count

    def write(self, indices: Array, array: Array) -> None:
        """Returns when the rows are on the disk."""
        for index, row in zip(indices.tolist(), array, strict=True):
            _write_all(self._descriptor, row.tobytes(), self._start + index * self._stride)
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


def _checksums(rows: Mapping[str, Array]) -> Array:
    """A number for each sample, of its rows in all files; never 0."""
    found = [0] * len(next(iter(rows.values())))
    for array in rows.values():
        found = [zlib.crc32(row, before) for row, before in zip(array, found, strict=True)]
    return np.array([PRESENT | each for each in found], np.uint64)


def _samples_of(x: Any, missing: Array, asked: Array) -> Any:
    """The samples of the missing indices, from a function or out of the whole batch."""
    if callable(x):
        found = x(missing)
        _check_length("load", found, len(missing), "missing samples")
        return found
    if x is None:
        raise StepError(f"train: x is None, but the cache lacks the features of sample {missing[0]}; pass the batch")
    _check_length("x", x, len(asked), "indices")
    places = np.array([int(np.argmax(asked == index)) for index in missing])
    return tuple(_take(part, places) for part in x) if isinstance(x, tuple) else _take(x, places)


def _take(part: Any, places: Array) -> Any:
    return (part if hasattr(part, "shape") else np.asarray(part))[places]


def _check_length(label: str, x: Any, count: int, of_what: str) -> None:
    for part in x if isinstance(x, tuple) else (x,):
        try:
            length = len(part)
        except TypeError as error:
            raise StepError(f"train: {label} gives a '{type(part).__name__}'; pass arrays of samples") from error
        if length != count:
            raise StepError(f"train: {label} has {length} samples for {count} {of_what}; pass equally many")


def _write_all(descriptor: int, content: bytes, offset: int) -> None:
    view = memoryview(content)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def _synchronise(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _count(samples: Any) -> int:
    try:
        count = operator.index(samples)
    except TypeError:
        count = 0
    if isinstance(samples, bool) or not 1 <= count <= MOST_SAMPLES:
        raise StepError(f"open_cache: samples {samples!r} is no number of samples; pass 1 to {MOST_SAMPLES}")
    return count
