"""The batch that an artifact brings along, and what PyTorch makes of it: loss and gradients, for `gf-train --selftest`.

The truth is the gradient program's graph after all passes, run in plain PyTorch by its operators' eager
implementations: nothing of the compiled code takes part. Of each gradient the file keeps its norm and up to 256 values
evenly spread over it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gfcompile.job import Analysis
from gfcompile.runtime.tensorfile import Array
from gfcompile.step import Role, Value
from gfcompile.verify.eager import random_input, random_target, run_eagerly

# Relative, of a norm and in the 2-norm of the kept values. float32 through a whole network in another order of
# additions comes to 1e-5; a ReLU whose input is within rounding of zero may add more; a wrong kernel adds far more.
TOLERANCES = {"eval": 1e-3, "train": 1e-2}
KEPT = 256
SEED = 20261


def make_selftest(analysis: Analysis, manifest: dict[str, Any]) -> dict[str, Array]:
    """The tensors of the file; `gf_selftest.c` reads them by these names."""
    generator = torch.Generator().manual_seed(SEED)
    doors: dict[str, Tensor] = {}
    draws = analysis.plan.draws()
    for spec in manifest["inputs"]:
        role, key = spec["role"], f"{spec['role']}/{spec['name']}"
        if role == Role.INPUT:
            doors[key] = random_input(spec, generator)
        elif role == Role.TARGET:
            doors[key] = random_target(manifest, spec, generator)
        elif role == Role.CHANNELS:
            doors[key] = torch.tensor(draws[spec["name"]].spread(), dtype=torch.int32)
        else:  # every sample counts, and the seed is 0, as run_eagerly has it
            fill = 1 if role == Role.SAMPLE_WEIGHT else 0
            doors[key] = torch.full(spec["shape"], fill, dtype=getattr(torch, spec["dtype"]))
    x, y = ([doors[key] for key in doors if key.startswith(f"{role}/")] for role in (Role.INPUT, Role.TARGET))
    channels = {layer: doors[f"{Role.CHANNELS}/{layer}"] for layer in draws}
    outputs = run_eagerly(analysis.steps["gradients"], tuple(x), y[0], channels=channels)
    found = {key: tensor.numpy() for key, tensor in doors.items()}
    found["tolerance"] = np.array([TOLERANCES[manifest["batchnorm"]]], np.float32)
    for value, result in outputs.items():
        if value.role is Role.LOSS:
            found["loss"] = result.reshape(1).numpy()
        elif value.role is Role.GRADIENT:
            gradient = _logical(analysis, value, result).numpy().reshape(-1)
            taken = min(KEPT, gradient.size)
            found[f"norm/{value.name}"] = np.array([np.linalg.norm(gradient.astype(np.float64))], np.float32)
            found[f"values/{value.name}"] = gradient[np.arange(taken) * gradient.size // taken]
    return found


def _logical(analysis: Analysis, value: Value, gradient: Tensor) -> Tensor:
    layout = analysis.steps["gradients"].layouts.get(value.name)
    return gradient.contiguous() if layout is None else layout.unpack(gradient)
