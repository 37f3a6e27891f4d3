"""Seeds of the models' harness: small `.pt` and `.pt2` files, always the same bytes."""

from __future__ import annotations

import functools
import io
import json
import warnings
import zipfile
from collections.abc import Iterator

import torch
from torch import Tensor, nn

LEFT_OUT = ("serialization_id", "sample_inputs")  # drawn by lot, or not read


class Several(nn.Module):
    """A part without gradients, an operator with several results, a dictionary of outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 2, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        values, _ = self.conv(x).flatten(2).max(2)
        with torch.no_grad():
            twice = values * 2
        return {"values": values, "twice": twice}


def model_seeds() -> Iterator[tuple[str, bytes]]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2), nn.ReLU()).eval()
    yield "sequential.pt", stored(saved(net))
    held = nn.Conv2d(3, 2, 1)
    held.norm, held.names, held.gate = functools.partial(nn.LayerNorm, eps=1e-6), {"a"}, torch.sigmoid
    held.weight.tag = "kept"
    yield "attributes.pt", stored(saved(held))
    yield "recurrent.pt", stored(saved(nn.LSTM(2, 2)))
    x = torch.zeros(1, 3, 8, 8)
    yield "exported.pt2", stored(exported(net, x))
    yield "dynamic.pt2", stored(exported(net, x.expand(2, -1, -1, -1), ({0: torch.export.Dim("batch", min=1)},)))
    yield "several.pt2", stored(exported(Several(), x))


def saved(module: nn.Module) -> bytes:
    whole = io.BytesIO()
    torch.save(module, whole)
    return whole.getvalue()


def exported(module: nn.Module, x: Tensor, shapes: object = None) -> bytes:
    whole = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(module, (x,), dynamic_shapes=shapes), whole)
    return whole.getvalue()


def stored(whole: bytes) -> bytes:
    """The records without what differs from run to run, and programs without their history."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(whole)) as archive, zipfile.ZipFile(out, "w") as smaller:
        for name in archive.namelist():
            content = archive.read(name)
            if name.endswith("models/model.json"):
                content = json.dumps(without_history(json.loads(content)), separators=(",", ":")).encode()
            if not any(word in name for word in LEFT_OUT):
                smaller.writestr(zipfile.ZipInfo(f"m/{name.partition('/')[2]}", (2026, 1, 1, 0, 0, 0)), content)
    return out.getvalue()


def without_history(part: object) -> object:
    if isinstance(part, list):
        return [without_history(each) for each in part]
    if not isinstance(part, dict):
        return part
    return {key: {} if key == "metadata" else without_history(value) for key, value in part.items()}
