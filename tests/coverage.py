"""Every definition of tests/models compiled and trained against PyTorch: `python -m tests.coverage [NAME ...]`.

The last convolutions are filtered and everything with parameters after them is trained exactly. The peer is the same
model in eager PyTorch, with the backward pass of tests/oracles.py in the filtered convolutions.
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import gfcompile
from gfcompile.frontend.losses import main_output, resolve_loss
from gfcompile.job import Job
from gfcompile.plan import make_plan
from gfcompile.settings.schema import Request
from gfcompile.stages import make_survey
from tests.end_to_end.eager import OracleConvolution
from tests.models.definitions import DEFINITIONS, Definition

STEPS, LR, MOMENTUM, WEIGHT_DECAY = 3, 0.01, 0.9, 1e-4
TOLERANCE = 1e-4  # float32 on both sides through a whole network, as tolerances.EXACT_GRADIENT
NEGLIGIBLE = 1e-4  # of the largest gradient: smaller ones are measured by it


@dataclass(frozen=True)
class Row:
    """What was found for one definition; `worst` is the largest relative error, `where` its place."""

    name: str
    operators: int
    kernels: int
    filtered: int
    trained: int
    seconds: float
    worst: float
    where: str
    failure: str | None = None

    @property
    def passed(self) -> bool:
        return self.failure is None and self.worst <= TOLERANCE


def check(definition: Definition, folder: Path) -> Row:
    """Compile a definition, compare outputs, loss, every gradient, and the weights after three steps."""
    model, x = definition.make(), definition.example()
    y = _target(definition, model, x, seed=0)
    start = time.perf_counter()
    tail = _tail(definition, model, x)
    step = gfcompile.compile(
        model,
        x,
        layers=definition.layers,
        r=2,
        train=tail,
        loss=definition.loss,
        lr=LR,
        momentum=MOMENTUM,
        weight_decay=WEIGHT_DECAY,
        out=folder / "covered_step",
    )
    seconds = time.perf_counter() - start
    peer = Peer(model, step, definition.loss)
    errors: dict[str, float] = {}
    expected = peer.predict(x)
    for index, (found, wanted) in enumerate(zip(pytree.tree_leaves(step.predict(x)), expected, strict=True)):
        errors[f"output {index}"] = _error(found, wanted)
    _, gradients = Peer(model, step, definition.loss).gradients(x, y)
    floor = NEGLIGIBLE * max(float(np.linalg.norm(value)) for value in gradients.values())
    found_gradients = step.gradients(x, y)
    assert found_gradients.keys() == gradients.keys(), found_gradients.keys() ^ gradients.keys()
    for parameter, wanted in gradients.items():
        errors[f"gradient {parameter}"] = _error(found_gradients[parameter], wanted, floor)
    for number in range(STEPS):
        batch = definition.example(seed=number)
        target = _target(definition, model, batch, seed=number)
        errors[f"loss of step {number}"] = _error(step.train(batch, target), peer.train(batch, target))
    state = step.state_dict()
    for key, wanted in peer.model.state_dict().items():
        errors[f"{key} after {STEPS} steps"] = _error(state[key], wanted)
    where = max(errors, key=lambda key: np.nan_to_num(errors[key], nan=np.inf))
    report = _report(folder / "covered_step")
    counts = (*report, len(step.filtered_layers), len(gradients))
    step.close()
    return Row(definition.name, *counts, seconds, errors[where], where)


def _report(folder: Path) -> tuple[int, int]:
    """Distinct operators in the traced graph, and distinct kernels that a training step calls."""
    lines = (folder / "graphs" / "train" / "00_traced.txt").read_text().splitlines()
    calls = {line.split(" = ")[1].split("(")[0] for line in lines if " = " in line}
    return len(calls), json.loads((folder / "report.json").read_text())["kernels"]["train"]


def _tail(definition: Definition, model: nn.Module, x: tuple[Tensor, ...]) -> list[str]:
    """Layers without a convolution after the first filtered one: norms, scales, linear layers."""
    request = Request(layers=definition.layers)
    layers = make_survey(Job(model, x, resolve_loss(definition.loss), request))
    filtered = {layer.name for layer in make_plan(layers, request).trained if layer.r is not None}
    first = next(index for index, layer in enumerate(layers) if layer.name in filtered)
    return [layer.name for layer in layers[first:] if layer.kind != "conv" and layer.name and not layer.idle]


def _target(definition: Definition, model: nn.Module, x: tuple[Tensor, ...], seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 + seed)
    with torch.no_grad():
        output = main_output(copy.deepcopy(model).eval()(*x))
    if definition.loss == "mse":
        return torch.randn(output.shape, generator=generator)
    return torch.randint(0, output.shape[1], (output.shape[0], *output.shape[2:]), generator=generator)


def _error(found: Any, expected: Any, floor: float = 0.0) -> float:
    a, b = (np.asarray(value, np.float64) for value in (found, expected))
    if a.shape != b.shape:
        return float("inf")
    size = max(float(np.linalg.norm(b)), floor)
    distance = float(np.linalg.norm(a - b))
    return distance / size if size else distance


class Peer:
    """The model in eager PyTorch, trained on the parameters and filtered in the layers that the step says."""

    def __init__(self, model: nn.Module, step: gfcompile.CompiledStep, loss: str) -> None:
        self.model = copy.deepcopy(model).eval()
        self.patches = {row["layer"]: row["r"] for row in step.manifest["plan"]["trained"] if row["r"] is not None}
        self.patches = {name: r for name, r in self.patches.items() if name in step.filtered_layers}
        self.loss = F.cross_entropy if loss == "cross_entropy" else F.mse_loss
        named = dict(self.model.named_parameters(remove_duplicate=False))
        self.trained = {name: named[name] for name in step.manifest["gradients"]}
        for parameter in named.values():
            parameter.requires_grad_(False)
        for parameter in self.trained.values():
            parameter.requires_grad_(True)
        self.optimizer = torch.optim.SGD(
            list(self.trained.values()), lr=LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY
        )

    @torch.no_grad()
    def predict(self, x: tuple[Tensor, ...]) -> list[Tensor]:
        """Of a copy: a model may update its buffers whenever it is called."""
        return pytree.tree_leaves(copy.deepcopy(self.model)(*x))

    def gradients(self, x: tuple[Tensor, ...], y: Tensor) -> tuple[float, dict[str, np.ndarray]]:
        self.optimizer.zero_grad()
        with filtered(self.model, self.patches):
            loss = self.loss(main_output(self.model(*x)), y)
        loss.backward()
        return loss.item(), {name: parameter.grad.numpy().copy() for name, parameter in self.trained.items()}

    def train(self, x: tuple[Tensor, ...], y: Tensor) -> float:
        loss, _ = self.gradients(x, y)
        self.optimizer.step()
        return loss


@contextmanager
def filtered(model: nn.Module, patches: dict[str, int], mode: str = "unbiased") -> Iterator[None]:
    """2-D convolutions that run inside the named modules get the oracle's backward, whatever computes their weights."""
    running: list[str] = []
    hooks = []
    for name, module in model.named_modules():

        def enter(module: nn.Module, inputs: Any, name: str = name) -> None:
            running.append(name)

        def leave(module: nn.Module, inputs: Any, output: Any) -> None:
            running.pop()

        hooks += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
    try:
        with _Oracle(running, patches, mode):
            yield
    finally:
        for hook in hooks:
            hook.remove()


class _Oracle(TorchFunctionMode):
    def __init__(self, running: list[str], patches: dict[str, int], mode: str) -> None:
        super().__init__()
        self.running, self.patches, self.mode = running, patches, mode

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is torch.conv2d and self.running and self.running[-1] in self.patches:
            return self._convolve(self.patches[self.running[-1]], *args, **kwargs)
        return function(*args, **kwargs)

    def _convolve(
        self, r: int, input: Tensor, weight: Tensor, bias: Any = None, stride: Any = 1, padding: Any = 0,
        dilation: Any = 1, groups: int = 1,
    ) -> Tensor:  # fmt: skip
        if padding == "valid":
            padding = 0
        elif padding == "same":
            total = [d * (k - 1) for d, k in zip(_pair(dilation), weight.shape[2:], strict=True)]
            if any(size % 2 for size in total):
                input = F.pad(input, [0, total[1] % 2, 0, total[0] % 2])
            padding = [size // 2 for size in total]
        geometry = {"stride": _pair(stride), "padding": _pair(padding), "dilation": _pair(dilation), "groups": groups}
        return OracleConvolution.apply(input, weight, bias, geometry, r, self.mode)


def _pair(value: Any) -> tuple[int, int]:
    values = tuple(value) if isinstance(value, tuple | list) else (value,)
    return (values[0], values[-1])


def check_safely(name: str) -> Row:
    """For the table: a failure is a row like any other."""
    torch.set_num_threads(1)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="coverage-") as folder:
        try:
            return check(DEFINITIONS[name], Path(folder))
        except Exception as error:  # noqa: BLE001 - the table goes on, and the exit code tells
            last = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            place = f"{Path(last.filename).name}:{last.lineno}"
            return Row(name, 0, 0, 0, 0, time.perf_counter() - start, float("nan"), place, text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="definitions; all if none is named")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    names = args.names or list(DEFINITIONS)
    print(f"{'definition':<24} {'ops':>4} {'kernels':>7} {'filtered':>8} {'trained':>7} {'seconds':>7}  worst error")
    rows = []
    with multiprocessing.get_context("spawn").Pool(args.jobs, maxtasksperchild=4) as pool:
        for row in pool.imap_unordered(check_safely, names):
            verdict = "" if row.passed else "  FAILED"
            found = row.failure or f"{row.worst:.1e} {row.where}"
            print(
                f"{row.name:<24} {row.operators:>4} {row.kernels:>7} {row.filtered:>8} {row.trained:>7}"
                f" {row.seconds:>7.1f}  {found} {row.where if row.failure else ''}{verdict}",
                flush=True,
            )
            rows.append(row)
    failed = [row.name for row in rows if not row.passed]
    print(
        f"\n{len(rows) - len(failed)} of {len(rows)} definitions pass"
        + (f"; failed: {', '.join(failed)}" if failed else "")
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
