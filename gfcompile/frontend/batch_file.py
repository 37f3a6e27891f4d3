"""A batch in an .npz file: arrays `x` (or `x0`, `x1`, ... for several inputs) and `y`, as users save it with NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gfcompile.errors import UserError

HOW_TO_SAVE = "write it with numpy.savez(path, x=..., y=...)"
SAMPLES = ("float32", "int64", "bool")  # what a model may read


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Everything in the file, by name."""
    if not path.is_file():
        raise UserError(f"--data {path}: no such file; {HOW_TO_SAVE}")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except Exception as error:  # a damaged archive can raise anything; an .npy file gives an array, which has no files
        raise UserError(f"--data {path}: not a readable .npz file; {HOW_TO_SAVE}") from error
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):  # numpy gives the bytes of what is no .npy file
            raise UserError(f"--data {path}: '{name}' in it is no array; {HOW_TO_SAVE}")
    return arrays


def read_batch(path: Path, samples: int | None = None) -> tuple[tuple[Tensor, ...], Tensor]:
    """The inputs and the target; all samples of the file, or the first of them."""
    arrays = read_arrays(path)
    names = ["x"] if "x" in arrays else _several(arrays)
    for name in (*names, "y"):
        if name not in arrays:
            has = ", ".join(f"'{each}'" for each in arrays) or "nothing"
            raise UserError(f"--data {path}: has no array '{name}', it has {has}; {HOW_TO_SAVE}")
    counts = {name: len(arrays[name]) if arrays[name].ndim else 0 for name in (*names, "y")}
    least = min(counts.values())
    if least == 0 or len(set(counts.values())) > 1:
        found = ", ".join(f"{count} in '{name}'" for name, count in counts.items())
        raise UserError(f"--data {path}: samples do not match: {found}; save as many of each")
    if samples is not None and not 1 <= samples <= least:
        raise UserError(f"--batch {samples}: {path} has {least} samples; use 1 to {least}")
    *x, y = (_tensor(path, name, arrays[name][:samples]) for name in (*names, "y"))
    return tuple(x), y


def _several(arrays: dict[str, Any]) -> list[str]:
    count = 0
    while f"x{count}" in arrays:
        count += 1
    return [f"x{index}" for index in range(count)] or ["x"]


def _tensor(path: Path, name: str, array: np.ndarray) -> Tensor:
    """Floats as float32, signed whole numbers as int64. Bytes are refused: only the user knows how they are scaled."""
    if array.dtype.kind == "f":
        return torch.from_numpy(np.ascontiguousarray(array, np.float32))
    if array.dtype.kind == "i" or (array.dtype.kind == "u" and name == "y"):
        return torch.from_numpy(np.ascontiguousarray(array, np.int64))
    if array.dtype.kind == "b":
        return torch.from_numpy(np.ascontiguousarray(array))
    raise UserError(f"--data {path}: '{name}' is {array.dtype}; save it as the model takes it: {', '.join(SAMPLES)}")
