"""libstep.so through ctypes: `gf_step.h` in Python, failures as `StepError`."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from .errors import StepError
from .tensorfile import Array

OPTIONAL = ("gf_step_features", "gf_step_train_features")  # of a step compiled for a prefix cache
ALIGNMENT = 64  # the kernels load whole vectors: gf_step.h
Inputs = Sequence[Array | None]  # None: channels that the step draws itself
STATE, INPUT, OUTPUT, GRADIENT, FEATURE = range(5)  # gf_kind
DTYPES = ("float32", "float16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool")  # gf_dtype


def aligned_empty(shape: Sequence[int], dtype: str) -> Array:
    """An uninitialised array whose data starts at a multiple of 64 bytes."""
    kind = np.dtype(dtype)
    count = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    block: Array = np.empty(count + ALIGNMENT, np.uint8)
    start = -block.ctypes.data % ALIGNMENT
    return block[start : start + count].view(kind).reshape(shape)


class Draws(ctypes.Structure):
    """gf_draw_state: what drawn channels are a function of."""

    _fields_: ClassVar = [("seed", ctypes.c_uint32), ("steps", ctypes.c_int64), ("epoch", ctypes.c_int64)]


class Value(ctypes.Structure):
    """gf_value: a tensor, as the library describes it."""

    _fields_: ClassVar = [
        ("name", ctypes.c_char_p),
        ("role", ctypes.c_char_p),
        ("dtype", ctypes.c_int),
        ("rank", ctypes.c_int),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("split_rank", ctypes.c_int),
        ("split", ctypes.POINTER(ctypes.c_int64)),
        ("permute", ctypes.POINTER(ctypes.c_int)),
        ("bytes", ctypes.c_size_t),
    ]


class About(ctypes.Structure):
    """gf_about: what was compiled."""

    _fields_: ClassVar = [
        *((name, ctypes.c_char_p) for name in ("name", "target", "version", "loss")),
        ("lr", ctypes.c_float),
        *((name, ctypes.c_int) for name in ("batch", "pads", "classes", "has_ignored")),
        ("ignored", ctypes.c_int64),
    ]


class Library:
    """The functions of one loaded library."""

    def __init__(self, path: Path, build_id: str) -> None:
        """Load `path`, whose content hash the caller has checked, and compare its build id."""
        self._c = _open(path)
        if self._build_id() != build_id:
            # dlopen compares names first: an older build of the same path is still in this process.
            self._c = _open_afresh(path)
        if self._build_id() != build_id:
            raise StepError(
                f"'{path}': its build id {self._build_id()[:12]} is not the manifest's {build_id[:12]};"
                " recompile, or copy the whole artifact again (in a new process if it was overwritten in place)"
            )
        self.tensor_count: int = self._c.gf_step_tensor_count()
        self.tensor_bytes: list[int] = [self._c.gf_step_tensor_bytes(i) for i in range(self.tensor_count)]
        self.arena_bytes: int = self._c.gf_step_arena_bytes()
        self.state_bytes: int = self._c.gf_step_state_bytes()

    def values(self, kind: int) -> list[dict[str, Any]]:
        """What it keeps, takes or gives, in the words of a manifest's entries, and the bytes of each."""
        found = [self._c.gf_step_value(kind, index).contents for index in range(self._c.gf_step_count(kind))]
        return [_entry(value) for value in found]

    def about(self) -> About:
        """What was compiled."""
        return self._c.gf_step_about().contents

    def create(self, threads: int) -> int:
        """A new step on so many threads, by its handle."""
        handle = self._c.gf_step_create(threads)
        if not handle:
            raise StepError(f"load: {self._error()}")
        return int(handle)

    def destroy(self, handle: int) -> None:
        """Free the step; its handle is void from now on."""
        self._c.gf_step_destroy(handle)

    def threads(self, handle: int) -> int:
        """Threads that the step runs on."""
        return int(self._c.gf_step_threads(handle))

    def set_threads(self, handle: int, threads: int) -> None:
        """Run on so many threads from the next call on."""
        self._check(self._c.gf_step_set_threads(handle, threads), "threads")

    def get(self, handle: int, index: int, physical: Array) -> None:
        """Copy a state tensor into a contiguous array of its size."""
        self._check(self._c.gf_step_get(handle, index, physical.ctypes.data), "state")

    def set(self, handle: int, index: int, physical: Array) -> None:
        """Copy a tensor into the state, in the library's layout."""
        self._check(self._c.gf_step_set(handle, index, physical.ctypes.data), "state")

    def train(self, handle: int, inputs: Inputs, lr: float) -> float:
        """One training step; returns the loss."""
        loss = ctypes.c_float()
        self._check(self._c.gf_step_train(handle, _pointers(inputs), lr, ctypes.byref(loss)), "train")
        return loss.value

    def gradients(self, handle: int, inputs: Inputs, gradients: Sequence[Array]) -> float:
        """Fill in the gradients and change nothing; returns the loss."""
        loss = ctypes.c_float()
        code = self._c.gf_step_gradients(handle, _pointers(inputs), ctypes.byref(loss), _pointers(gradients))
        self._check(code, "gradients")
        return loss.value

    def predict(self, handle: int, inputs: Inputs, outputs: Sequence[Array]) -> None:
        """Fill in the model's outputs."""
        self._check(self._c.gf_step_predict(handle, _pointers(inputs), _pointers(outputs)), "predict")

    def features(self, handle: int, inputs: Inputs, features: Sequence[Array]) -> None:
        """Fill in what the frozen prefix makes of the inputs."""
        self._check(self._c.gf_step_features(handle, _pointers(inputs), _pointers(features)), "features")

    def train_features(self, handle: int, inputs: Inputs, lr: float) -> float:
        """One training step on features; returns the loss."""
        loss = ctypes.c_float()
        code = self._c.gf_step_train_features(handle, _pointers(inputs), lr, ctypes.byref(loss))
        self._check(code, "train_features")
        return loss.value

    def get_draws(self, handle: int) -> Draws:
        """What the next draw of channels depends on."""
        state = Draws()
        self._check(self._c.gf_step_get_draws(handle, ctypes.byref(state)), "draws")
        return state

    def set_draws(self, handle: int, state: Draws) -> None:
        """Go on drawing from there."""
        self._check(self._c.gf_step_set_draws(handle, ctypes.byref(state)), "draws")

    def draw(self, handle: int, index: int, channels: Array) -> None:
        """What the next step draws for the input of this index."""
        self._check(self._c.gf_step_draw(handle, index, channels.ctypes.data), "channels")

    def _build_id(self) -> str:
        return str(self._c.gf_build_id().decode("ascii", "replace"))

    def _error(self) -> str:
        return str(self._c.gf_error().decode("utf-8", "replace"))

    def _check(self, code: int, call: str) -> None:
        if code:
            raise StepError(f"{call}: {self._error()}")


def _entry(value: Value) -> dict[str, Any]:
    rank = value.split_rank
    return {
        "name": value.name.decode("utf-8", "replace"),
        "role": value.role.decode("utf-8", "replace"),
        "shape": value.shape[: value.rank],
        "dtype": DTYPES[value.dtype],
        "layout": {"shape": value.split[:rank], "permute": value.permute[:rank]} if rank else None,
        "bytes": value.bytes,
    }


def _pointers(arrays: Inputs) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * max(len(arrays), 1))(*[None if array is None else array.ctypes.data for array in arrays])


def _open_afresh(path: Path) -> ctypes.CDLL:
    with tempfile.TemporaryDirectory(prefix="gfcompile-") as folder:
        link = Path(folder) / path.name
        link.symlink_to(path.resolve())
        return _open(link)


def _open(path: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(os.fspath(path.absolute()))
    except OSError as error:
        raise StepError(f"'{path}': cannot be loaded: {error}; was it compiled for another target?") from error
    step, integer, pointers = ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p)
    loss = ctypes.POINTER(ctypes.c_float)
    signatures: dict[str, tuple[type | None, list[type]]] = {
        "gf_build_id": (ctypes.c_char_p, []),
        "gf_error": (ctypes.c_char_p, []),
        "gf_step_create": (step, [integer]),
        "gf_step_destroy": (None, [step]),
        "gf_step_threads": (integer, [step]),
        "gf_step_set_threads": (integer, [step, integer]),
        "gf_step_tensor_count": (integer, []),
        "gf_step_tensor_bytes": (ctypes.c_size_t, [integer]),
        "gf_step_get": (integer, [step, integer, ctypes.c_void_p]),
        "gf_step_set": (integer, [step, integer, ctypes.c_void_p]),
        "gf_step_get_draws": (integer, [step, ctypes.POINTER(Draws)]),
        "gf_step_set_draws": (integer, [step, ctypes.POINTER(Draws)]),
        "gf_step_draw": (integer, [step, integer, ctypes.c_void_p]),
        "gf_step_count": (integer, [integer]),
        "gf_step_value": (ctypes.POINTER(Value), [integer, integer]),
        "gf_step_about": (ctypes.POINTER(About), []),
        "gf_step_arena_bytes": (ctypes.c_size_t, []),
        "gf_step_state_bytes": (ctypes.c_size_t, []),
        "gf_step_train": (integer, [step, pointers, ctypes.c_float, loss]),
        "gf_step_gradients": (integer, [step, pointers, loss, pointers]),
        "gf_step_predict": (integer, [step, pointers, pointers]),
        "gf_step_features": (integer, [step, pointers, pointers]),
        "gf_step_train_features": (integer, [step, pointers, ctypes.c_float, loss]),
    }
    for name, (result, arguments) in signatures.items():
        try:
            function = getattr(library, name)
        except AttributeError as error:
            if name in OPTIONAL:
                continue
            raise StepError(f"'{path}': has no function {name}; recompile the artifact") from error
        function.restype, function.argtypes = result, arguments
    return library
