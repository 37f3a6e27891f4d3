"""gf_step.h through ctypes, as a C program sees it."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

STATE, INPUT, OUTPUT, GRADIENT, FEATURE = range(5)
DTYPES = ("float32", "float16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool")


class Value(ctypes.Structure):
    """gf_value of gf_step.h."""

    _fields_ = (
        ("name", ctypes.c_char_p), ("role", ctypes.c_char_p), ("dtype", ctypes.c_int), ("rank", ctypes.c_int),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("split_rank", ctypes.c_int),
        ("split", ctypes.POINTER(ctypes.c_int64)), ("permute", ctypes.POINTER(ctypes.c_int)),
        ("bytes", ctypes.c_size_t),
    )  # fmt: skip


class Progress(ctypes.Structure):
    """gf_progress of gf_step.h."""

    _fields_ = (
        ("steps", ctypes.c_int64),
        ("lr", ctypes.c_double),
        ("note", ctypes.c_char * 256),
        ("fault", ctypes.c_char * 512),
    )


class C:
    """The functions of a library by their own names."""

    def __init__(self, path: Path) -> None:
        self._c = ctypes.CDLL(str(path))
        self._c.gf_error.restype = ctypes.c_char_p
        self._c.gf_step_open.restype = ctypes.c_void_p
        self._c.gf_step_value.restype = ctypes.POINTER(Value)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._c, name)

    def open(self, folder: Path) -> ctypes.c_void_p:
        step = self._c.gf_step_open(str(folder).encode(), 1)
        assert step, self.error()
        return ctypes.c_void_p(step)

    def error(self) -> str:
        return str(self._c.gf_error().decode())


def assert_described(folder: Path) -> None:
    """What the library says of its tensors is what the manifest says."""
    c, manifest = C(folder / "libstep.so"), json.loads((folder / "manifest.json").read_text())
    layouts = {entry["name"]: entry for entry in manifest["state"] if entry["role"] == "parameter"}
    gradients = [{**layouts[name], "role": "gradient"} for name in manifest["gradients"]]
    lists = {STATE: manifest["state"], INPUT: manifest["inputs"], OUTPUT: manifest["outputs"], GRADIENT: gradients}
    for kind, entries in lists.items():
        assert c.gf_step_count(kind) == len(entries) > 0
        for index, entry in enumerate(entries):
            value = c.gf_step_value(kind, index).contents
            assert (value.name.decode(), value.role.decode()) == (entry["name"], entry.get("role", "output"))
            assert (value.shape[: value.rank], DTYPES[value.dtype]) == (entry["shape"], entry["dtype"])
            split = {"shape": value.split[: value.split_rank], "permute": value.permute[: value.split_rank]}
            assert split == (entry.get("layout") or {"shape": [], "permute": []})
            assert c.gf_step_find(kind, value.role, value.name) == index
