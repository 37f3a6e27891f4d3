"""The weights and constants of an exported program: records of plain bytes, and a table that says what they are."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._export.serde.schema import ScalarType
from torch._export.serde.serialize import _SERIALIZE_TO_TORCH_DTYPE

from gfcompile.frontend.archive import EXPANDED, Archive
from gfcompile.frontend.foreign import MalformedError, refuse_without_trust


@dataclass(frozen=True)
class Tensors:
    """By their names in the model; parameters are `nn.Parameter`s, and one that has two names is one object."""

    weights: dict[str, Tensor]
    constants: dict[str, Tensor]


def read_tensors(path: str, archive: Archive) -> Tensors:
    """The archive's weights and constants."""
    return Tensors(_read_table(path, archive, "weights"), _read_table(path, archive, "constants"))


def dtype_of(number: Any) -> torch.dtype:
    """A type by torch.export's number for it."""
    if type(number) is not int or number not in set(ScalarType) or number not in _SERIALIZE_TO_TORCH_DTYPE:
        raise MalformedError(f"there is no tensor type '{number}'")
    return _SERIALIZE_TO_TORCH_DTYPE[ScalarType(number)]


def _read_table(path: str, archive: Archive, kind: str) -> dict[str, Tensor]:
    folder = f"data/{kind}"
    table = json.loads(archive.read(f"{folder}/model_{kind}_config.json"))["config"]
    records: dict[str, bytearray] = {}
    found: dict[str, Tensor] = {}
    same: dict[str, Tensor] = {}
    for name, entry in table.items():
        record = entry["path_name"]
        if not str(record).startswith(("weight_", "tensor_")) or entry["use_pickle"] is not False:
            refuse_without_trust(path, f"holds an object other than a tensor in '{folder}/{record}'")
        if record not in records:
            records[record] = archive.read(f"{folder}/{record}")
        key = json.dumps(entry, sort_keys=True)
        if key not in same:
            same[key] = _make_tensor(records[record], entry["tensor_meta"], entry["is_param"] is True)
        found[name] = same[key]
    return found


def _make_tensor(content: bytearray, about: dict[str, Any], is_parameter: bool) -> Tensor:
    dtype = dtype_of(about["dtype"])
    size, stride = ([_whole(each) for each in about[key]] for key in ("sizes", "strides"))
    if content:
        values = torch.frombuffer(content, dtype=torch.uint8).view(dtype)
        if math.prod(size) > max(values.numel(), EXPANDED):
            raise MalformedError("a tensor repeats its values too often")
        tensor = torch.as_strided(values, size, stride, _whole(about["storage_offset"]))  # stays within its record
    else:
        if math.prod(size):
            raise MalformedError("a tensor has lost its values")
        tensor = torch.empty(size, dtype=dtype)
    tensor = tensor.detach()
    return nn.Parameter(tensor, about["requires_grad"] is True) if is_parameter else tensor


def _whole(size: Any) -> int:
    value = size["as_int"]
    if type(value) is not int or value < 0:
        raise MalformedError(f"'{value}' is a size in it")
    return value
