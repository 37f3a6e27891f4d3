"""Checkpoints, and weights for a model that a factory makes."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

from torch import nn

from gfcompile.frontend.load import load_model
from gfcompile.runtime import checkpoint, tensorfile
from gfcompile.runtime.state import merge
from tests.fuzz.check import Check, refused
from tests.fuzz.mutate import change_tensors
from tests.fuzz.sealing import each_way
from tests.runtime.conftest import manifest, weights

MANIFEST, WEIGHTS = manifest(), weights()


def read(data: bytes) -> None:
    for content in each_way(data):
        path = Path("a.safetensors")
        path.write_bytes(content)
        refused(tensorfile.read, path)
        found = refused(checkpoint.load, path, MANIFEST)
        if found is not None:
            merge(MANIFEST, WEIGHTS, {name.partition("/")[2]: value for name, value in found.tensors.items()})
            assert math.isfinite(found.progress.lr)
            assert found.progress.steps >= 0
    refused(partial(load_model, f"{__name__}:small_model", weights="a.safetensors"))


def small_model() -> nn.Module:
    model = nn.Module()
    model.fc = nn.Linear(2, 3)
    return model


CHECK = Check(read, change_tensors)
