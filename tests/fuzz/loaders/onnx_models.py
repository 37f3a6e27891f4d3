"""ONNX models: loaded, and run once on a small batch of their own shape, as the compiler does."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from onnx import ModelProto

from gfcompile.frontend.load import load_model
from gfcompile.frontend.trace import run_once
from tests.fuzz.check import Check
from tests.fuzz.mutate import change_protobuf

MOST_VALUES = 4096


def read(data: bytes) -> None:
    Path("a.onnx").write_bytes(data)
    loaded = load_model("a.onnx")
    shape = loaded.example_shape
    if shape is not None and math.prod(shape) <= MOST_VALUES:
        run_once(loaded.module, (torch.zeros(shape),))


CHECK = Check(read, change_protobuf(ModelProto.FromString))
