"""Fine-tuning on half B through the compiled step, and what is counted of that step."""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, pi
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import gfcompile
from benchmarks.evidence.data import Images, Task, batches
from benchmarks.evidence.settings import SHARE, Method, Settings
from gfcompile.api import CompiledStep
from gfcompile.errors import UserError
from gfcompile.frontend.losses import resolve_loss
from gfcompile.job import Job
from gfcompile.plan import make_plan
from gfcompile.report import read_report
from gfcompile.report.schema import LayerRow
from gfcompile.report.sparse import make_sparse
from gfcompile.settings.schema import Request
from gfcompile.stages import make_survey

NO_NOISE_DB = 100.0  # beyond this only rounding is left


def compile_step(
    model: nn.Module, method: Method, layers: int, settings: Settings, out: Path, threads: int | None = 1
) -> CompiledStep:
    """SGD, batch norms frozen; schedules as they ship, whatever was tuned on this machine."""
    x = torch.zeros(settings.batch, 1, 28, 28)
    return gfcompile.compile(
        model, (x,), loss="cross_entropy", optimizer="sgd", lr=0.0, momentum=settings.momentum,
        target="native", tuning=False, out=out, threads=threads, **choose(model, method, layers, x),
    )  # fmt: skip


def choose(model: nn.Module, method: Method, layers: int, x: torch.Tensor) -> dict[str, Any]:
    """The arguments of `gfcompile.compile` that make the method."""
    if not method.trains_convolutions:
        return {"train": [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]}
    chosen: dict[str, Any] = {"layers": layers} | ({"exact": True} if method.r is None else {"r": method.r})
    if method.strategy is not None:
        chosen |= {"sparse": sparse_ratio(model, layers, x), "sparse_strategy": method.strategy}
    return chosen


def sparse_ratio(model: nn.Module, layers: int, x: torch.Tensor) -> float:
    """The largest ratio, the same in each of the last layers, that updates at most SHARE of all convolution weights."""
    survey = make_survey(Job(model, (x,), resolve_loss("cross_entropy"), Request(layers=layers)))

    def share(ratio: float) -> float:
        found = make_sparse(survey, make_plan(survey, Request(layers=layers, sparse={"*": ratio})))
        return found.share if found else 1.0

    fitting = [thousandths / 1000 for thousandths in range(1, 1000) if share(thousandths / 1000) <= SHARE]
    if not fitting:
        raise UserError(f"evidence: no ratio updates at most {SHARE:.0%} of the weights; take a wider network")
    return max(fitting)


def train(
    step: CompiledStep, model: nn.Module, task: Task, rate: float, seed: int, settings: Settings, epochs: int
) -> list[float | None]:
    """All epochs, the learning rate along half a cosine; the mean SNR (dB) of the gradients as each epoch begins.

    The images and their order depend on the seed alone, so that methods are compared pair by pair.
    """
    rng = np.random.default_rng(seed)
    chosen = rng.choice(len(task.pool.y), settings.images, replace=False)
    if step.channels:
        step.draw_seed = seed
    count = -(-settings.images // settings.batch)
    total, done = epochs * count, 0
    quality = []
    for _ in range(epochs):
        quality.append(gradient_snr(step, model, batches(task.validation, settings.batch)[0]))
        for x, y in batches(task.pool, settings.batch, rng.permutation(chosen)):
            step.train(x, y, lr=rate * (1 + cos(pi * done / total)) / 2)
            done += 1
    return quality


def accuracy(step: CompiledStep, images: Images, settings: Settings) -> float:
    """Per cent."""
    parts = batches(images, settings.batch)
    right = sum(int(np.sum(np.asarray(step.predict(x)).argmax(1) == y)) for x, y in parts)
    return 100 * right / len(images.y)


def gradient_snr(step: CompiledStep, model: nn.Module, batch: Images) -> float | None:
    """Of the step's weight gradients against PyTorch's exact ones at the same weights: dB, mean over convolutions."""
    model.load_state_dict(step.state_dict())
    ours = {name: np.asarray(g) for name, g in step.gradients(*batch).items() if np.ndim(g) == 4}
    parameters = {name: value for name, value in model.named_parameters() if name in ours}
    if not parameters:
        return None
    loss = cross_entropy(model(torch.from_numpy(batch.x)), torch.from_numpy(batch.y))
    exact = torch.autograd.grad(loss, list(parameters.values()))
    return float(np.mean([snr_db(g.numpy(), ours[name]) for name, g in zip(parameters, exact, strict=True)]))


def snr_db(exact: np.ndarray, approximate: np.ndarray) -> float:
    """Power of the signal over power of the error."""
    signal, noise = (float(np.sum(np.square(each, dtype=np.float64))) for each in (exact, exact - approximate))
    return min(NO_NOISE_DB, 10 * float(np.log10(signal / noise))) if noise and signal else NO_NOISE_DB


def counted(artifact: Path) -> dict[str, Any]:
    """From the artifact's report, an image: what training the convolutions adds to the forward pass, and the memory."""
    report = read_report(artifact)
    batch = report.input_shape[0]
    convolutions = [layer for layer in report.layers if layer.trained and layer.kind == "conv"]
    flops = [layer.flops.filtered for layer in convolutions]
    return {
        "numbers_are": "counted",
        "flops": sum(each.backward + each.forward_overhead for each in flops) / batch,
        "forward_flops": _forward_flops(report.layers) / batch,
        "saved_bytes": report.memory.saved_bytes,
        "arena_bytes": report.memory.arena_bytes,
        "updated_share": report.sparse.share if report.sparse else None,
        "drawn_share": _drawn_share(convolutions) if report.sparse else None,
    }


def _drawn_share(convolutions: Sequence[LayerRow]) -> float:
    """Of the input channels of all trained convolutions together."""
    drawn, every = (sum(each) for each in zip(*((one.channels, one.geometry.in_channels) for one in convolutions)))
    return drawn / every


def _forward_flops(layers: Sequence[LayerRow]) -> int:
    return sum(layer.flops.exact.forward for layer in layers if layer.flops)
