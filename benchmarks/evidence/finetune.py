"""Fine-tuning on half B through the compiled step, and what is counted of that step."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import cos, pi
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import gfcompile
from benchmarks.evidence.data import Images, Task, batches
from benchmarks.evidence.settings import METHODS, Method, Settings
from gfcompile.api import CompiledStep

NO_NOISE_DB = 100.0  # beyond this only rounding is left


def compile_step(
    model: nn.Module, method: Method, layers: int, x: np.ndarray, out: Path, threads: int | None = 1
) -> CompiledStep:
    """SGD without momentum, batch norms frozen; schedules as they ship, whatever was tuned on this machine."""
    return gfcompile.compile(
        model, (torch.from_numpy(x),), loss="cross_entropy", optimizer="sgd", lr=0.0,
        target="native", tuning=False, out=out, threads=threads, **choice(model, method, layers),
    )  # fmt: skip


def choice(model: nn.Module, method: Method, layers: int) -> dict[str, Any]:
    """The arguments of `gfcompile.compile` that make the method."""
    if not method.trains_convolutions:
        return {"train": [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]}
    return {"layers": layers, **({"exact": True} if method.r is None else {"r": method.r})}


def train(step: CompiledStep, model: nn.Module, task: Task, rate: float, seed: int, settings: Settings) -> list[float]:
    """All epochs, the learning rate along half a cosine; the mean SNR (dB) of the gradients as each epoch begins."""
    rng = np.random.default_rng(seed)
    count = -(-len(task.train.y) // settings.batch)
    total, done = settings.epochs * count, 0
    quality = []
    for _ in range(settings.epochs):
        quality.append(gradient_snr(step, model, batches(task.validation, settings.batch)[0]))
        for x, y in batches(task.train, settings.batch, rng.permutation(len(task.train.y))):
            step.train(x, y, lr=rate * (1 + cos(pi * done / total)) / 2)
            done += 1
    return quality


def accuracy(step: CompiledStep, images: Images, settings: Settings) -> float:
    """Per cent."""
    parts = batches(images, settings.batch)
    right = sum(int(np.sum(np.asarray(step.predict(x)).argmax(1) == y)) for x, y in parts)
    return 100 * right / len(images.y)


def gradient_snr(step: CompiledStep, model: nn.Module, batch: Images) -> float:
    """Of the step's weight gradients against PyTorch's exact ones at the same weights: dB, mean over convolutions."""
    model.load_state_dict(step.state_dict())
    ours = {name: np.asarray(g) for name, g in step.gradients(*batch).items() if np.ndim(g) == 4}
    exact = eager_gradients(model, batch, ours)
    return float(np.mean([snr_db(exact[name], g) for name, g in ours.items()])) if ours else NO_NOISE_DB


def eager_gradients(model: nn.Module, batch: Images, names: Mapping[str, Any]) -> dict[str, np.ndarray]:
    parameters = {name: value for name, value in model.named_parameters() if name in names}
    if not parameters:
        return {}
    loss = cross_entropy(model(torch.from_numpy(batch.x)), torch.from_numpy(batch.y))
    found = torch.autograd.grad(loss, list(parameters.values()))
    return {name: g.numpy() for name, g in zip(parameters, found, strict=True)}


def snr_db(exact: np.ndarray, approximate: np.ndarray) -> float:
    """Power of the signal over power of the error."""
    signal, noise = (float(np.sum(np.square(each, dtype=np.float64))) for each in (exact, exact - approximate))
    return min(NO_NOISE_DB, 10 * float(np.log10(signal / noise))) if noise and signal else NO_NOISE_DB


def counted(artifact: Path) -> dict[str, Any]:
    """From the artifact's report, an image: what training the convolutions adds to the forward pass, and the memory."""
    report = json.loads((artifact / "report.json").read_text(encoding="utf-8"))
    batch = report["input_shape"][0]
    convolutions = [layer for layer in report["layers"] if layer["trained"] and layer["kind"] == "conv"]
    flops = [layer["flops"]["filtered"] for layer in convolutions]
    return {
        "numbers_are": "counted",
        "flops": sum(each["backward"] + each["forward_overhead"] for each in flops) / batch,
        "forward_flops": _forward_flops(report["layers"]) / batch,
        "saved_bytes": report["memory"]["saved_bytes"],
        "arena_bytes": report["memory"]["arena_bytes"],
    }


def _forward_flops(layers: list[dict[str, Any]]) -> int:
    return sum(layer["flops"]["exact"]["forward"] for layer in layers if layer["flops"])
