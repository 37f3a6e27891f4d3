"""Operators compiled by themselves, many to a library, and compared with PyTorch's eager autograd.

A case is a function of tensors. Its operands are parameters of a module of the case's own name; what it returns is an
output of the compiled model. The gradient that flows back into it is a piece of the target, so that neither side of the
pass can be computed at compile time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

import gfcompile
from gfcompile.compiler import Job, find_unsupported, trace
from gfcompile.frontend.losses import Loss
from gfcompile.plan import Request
from tests.tolerances import relative_error

OPERATOR = 1e-5  # one operator in float32 on both sides; measured 1e-6 and less
Draw = Callable[[tuple[int, ...], torch.Generator], Tensor]


@dataclass(frozen=True)
class Case:
    """`function` of operands with these shapes; `draw` gives their values; an image is what a convolution made."""

    name: str
    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    draw: Draw
    is_image: bool = False
    tolerance: float = OPERATOR


def normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator)


def between(low: float, high: float) -> Draw:
    return lambda shape, generator: low + (high - low) * torch.rand(shape, generator=generator)


def distinct(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """No two alike: orders and maxima are then the same whatever the rounding."""
    count = math.prod(shape)
    return (torch.randperm(count, generator=generator).float() / count * 4 - 2).reshape(shape)


def case(name: str, function: Callable[..., Any], *shapes: tuple[int, ...], draw: Draw = normal, tolerance: float = OPERATOR) -> Case:
    return Case(name, function, shapes, draw, tolerance=tolerance)


def image(name: str, function: Callable[..., Any], shape: tuple[int, ...] = (2, 6, 7, 9), tolerance: float = OPERATOR) -> Case:
    """Between two 1x1 convolutions, where the layout pass takes values for images."""
    return Case(name, function, (shape,), normal, is_image=True, tolerance=tolerance)


class Operands(nn.Module):
    """One case: its operands and, around an image, the convolutions."""

    def __init__(self, made: Case, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.function = made.function() if isinstance(made.function, type) else made.function
        for index, shape in enumerate(made.shapes):
            self.register_parameter(f"x{index}", nn.Parameter(made.draw(shape, generator)))
        self.count = len(made.shapes)
        self.before = self.after = None
        if made.is_image:
            channels = made.shapes[0][1]
            self.before = _one_by_one(channels, channels, generator)
            with torch.no_grad():
                made_of_image = self.function(self.before(self.x0))
            if isinstance(made_of_image, Tensor) and made_of_image.dim() == 4:
                self.after = _one_by_one(made_of_image.shape[1], 4, generator)

    def forward(self, zero: Tensor) -> Any:
        values = [getattr(self, f"x{index}") + zero for index in range(self.count)]
        if self.before is not None:
            values[0] = self.before(values[0])
        result = self.function(*values)
        return result if self.after is None else self.after(result)


def _one_by_one(inputs: int, outputs: int, generator: torch.Generator) -> nn.Conv2d:
    layer = nn.Conv2d(inputs, outputs, 1)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator) * inputs**-0.5)
        layer.bias.copy_(torch.randn(layer.bias.shape, generator=generator))
    return layer


class Bundle(nn.Module):
    """The cases side by side. Its input is a zero that every operand is added to: a model's layers read its input."""

    def __init__(self, cases: Sequence[Case]) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.cases = nn.ModuleDict({each.name: Operands(each, seed) for seed, each in enumerate(cases)})

    def forward(self, x: Tensor) -> tuple[Any, ...]:
        zero = x.reshape(())
        return tuple(part(zero) for part in self.cases.values())


@dataclass
class Compared:
    """What each case's compiled outputs and gradients differ from PyTorch's by, relative and norm-wise."""

    errors: dict[str, dict[str, float]] = field(default_factory=dict)


ZERO = torch.zeros(1)


def compare(cases: Sequence[Case], folder: Path) -> dict[str, dict[str, float]]:
    """Compile the cases together; for each, the relative errors of its outputs and of its operands' gradients."""
    bundle = Bundle(cases)
    loss = WeightedOutputs()
    step = gfcompile.compile(
        bundle, ZERO, exact=True, train="*", loss=loss, out=folder / "operators_step", threads=1
    )
    expected = bundle(ZERO)
    target = loss.draw_target(expected)
    loss(expected, target).backward()
    found = iter(step.predict(ZERO))
    gradients = step.gradients(ZERO, target)
    step.close()
    errors: dict[str, dict[str, float]] = {}
    for name, outputs in zip(bundle.cases, expected, strict=True):
        own = errors[name] = {}
        for index, output in enumerate(pytree.tree_leaves(outputs)):
            own[f"output {index}"] = relative_error(next(found), output.detach())
        for parameter, value in bundle.cases[name].named_parameters():
            own[f"gradient {parameter}"] = relative_error(gradients[f"cases.{name}.{parameter}"], value.grad)
    return errors


class WeightedOutputs:
    """The sum of every float output times its piece of the target."""

    __name__ = "weighted_outputs"

    def __call__(self, output: Any, target: Tensor) -> Tensor:
        floats = _floats(output)
        pieces = target.reshape(-1).split([part.numel() for part in floats])
        terms = [(part * piece.view(part.shape)).sum() for part, piece in zip(floats, pieces, strict=True)]
        return torch.stack(terms).sum()

    def target_example(self, output: Any) -> Tensor:
        return torch.zeros(1, sum(part.numel() for part in _floats(output)))

    def draw_target(self, output: Any) -> Tensor:
        return torch.randn(self.target_example(output).shape, generator=torch.Generator().manual_seed(1))


def _floats(output: Any) -> list[Tensor]:
    return [part for part in pytree.tree_leaves(output) if part.is_floating_point()]


def job_of(cases: Sequence[Case]) -> Job:
    loss = WeightedOutputs()
    as_loss = Loss(loss.__name__, False, lambda output, target, _: loss(output, target), loss.target_example)
    return Job(Bundle(cases), (ZERO,), as_loss, Request(train=("*",), exact=True))


def unsupported(cases: Sequence[Case]) -> dict[str, str]:
    """Case by case, which operators have no translation."""
    found = {}
    for each in cases:
        try:
            _, missing = find_unsupported(job_of([each]))
        except Exception as error:  # noqa: BLE001 - what a broken case raises is what the reader wants to see
            found[each.name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            continue
        if missing:
            found[each.name] = " | ".join(map(str, missing))
    return found


def operators(cases: Sequence[Case]) -> set[str]:
    """The operators in the joint graph of the cases, as the passes get it."""
    graph = trace(job_of(cases)).training.body.graph
    return {str(node.target) for node in graph.nodes if node.op == "call_function"}
