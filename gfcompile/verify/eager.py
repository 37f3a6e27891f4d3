"""A step's graph in plain PyTorch, by its operators' eager implementations, and random batches for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gfcompile.frontend.trace import SAMPLE_WEIGHT, SEED, TARGET, Inputs, input_values
from gfcompile.step import Role, Step, Value, Visit

IGNORED = 0.2  # of the targets, where the loss ignores an index


def run_eagerly(
    step: Step,
    x: Inputs,
    y: Tensor,
    seed: int = 0,
    channels: Mapping[str, Tensor] | None = None,
    visit: Visit | None = None,
) -> dict[Value, Tensor]:
    """Run a training step's graph in plain PyTorch; outputs by their signature. `channels` are drawn, by layer; `visit`
    sees every call."""
    doors = {TARGET: y, SAMPLE_WEIGHT: torch.ones(x[0].shape[0]), SEED: torch.tensor(seed)}
    doors.update(zip(input_values(x), x, strict=True))
    doors.update({Value(Role.CHANNELS, layer): drawn for layer, drawn in (channels or {}).items()})
    inputs = [doors[value] if value in doors else _as_kept(step, value) for value in step.inputs]
    with torch.no_grad():
        results = step.run(*inputs, visit=visit)
    return dict(zip(step.outputs, results, strict=True))


def _as_kept(step: Step, value: Value) -> Tensor:
    """A copy of a weight in the order in which the graph reads it."""
    tensor, layout = step.tensors[value.name], step.layouts.get(value.parameter)
    return tensor.clone() if layout is None or step.is_frozen(value) else layout.pack(tensor)


def random_input(spec: dict[str, Any], generator: torch.Generator) -> Tensor:
    """A sample of the manifest's shape; indices are 0 or 1."""
    if spec["dtype"] == "float32":
        return torch.randn(spec["shape"], generator=generator)
    return torch.randint(0, 2, spec["shape"], generator=generator).to(getattr(torch, spec["dtype"]))


def random_target(manifest: dict[str, Any], spec: dict[str, Any], generator: torch.Generator) -> Tensor:
    """A target that the loss makes sense of: classes, some of them ignored if it ignores any, 0 or 1, or any number."""
    shape, dtype, loss = spec["shape"], getattr(torch, spec["dtype"]), manifest["loss"]
    if loss["name"] == "bce_with_logits":
        return torch.randint(0, 2, shape, generator=generator).to(dtype)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator)
    classes = loss["classes"] or manifest["outputs"][0]["shape"][1]
    y = torch.randint(0, classes, shape, generator=generator, dtype=dtype)
    ignored = loss["settings"].get("ignore_index")
    if ignored is not None:
        chosen = torch.rand(shape, generator=generator) < IGNORED
        chosen.view(-1)[0] = False  # a batch of which nothing counts has no loss
        y[chosen] = ignored
    return y
