"""Operators compiled by themselves, many to a library, and compared with PyTorch's eager autograd.

A case is a function of tensors. Its operands are parameters of a module of the case's own name; what it returns is an
output of the model. The gradient that flows back into it is a piece of the target, so that nothing can be computed at
compile time. The library is made as an artifact's is, without the training program.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from gfcompile.codegen.arena import plan_arena
from gfcompile.codegen.build import KernelBuilder
from gfcompile.codegen.description import describe
from gfcompile.codegen.driver import Planned, write_driver
from gfcompile.codegen.link import link_library
from gfcompile.codegen.lower import lower
from gfcompile.codegen.program import make_program
from gfcompile.codegen.scheduling import Scheduler
from gfcompile.codegen.state import StateTable
from gfcompile.frontend.losses import Loss
from gfcompile.job import Job, Traced
from gfcompile.passes import pipeline
from gfcompile.runtime.library import Library, aligned_empty
from gfcompile.runtime.state import State, physical_shape, unpack
from gfcompile.settings.schema import Request
from gfcompile.stages import find_unsupported, trace
from gfcompile.step import DOORS, Role, Step, Value
from gfcompile.targets import find_target
from tests.tolerances import relative_error

OPERATOR = 1e-5  # one operator in float32 on both sides; measured 1e-6 and less
IMAGE = (2, 6, 7, 9)
LARGEST_IMAGE = (2, 16, 16, 16)
NO_TRAINING = """
int gf_program_train(char *arena, void *const *state, const void *const *inputs, const float *lr, float *loss) {
  (void)arena; (void)state; (void)inputs; (void)lr; (void)loss;
  return 1;
}
"""
Draw = Callable[[tuple[int, ...], torch.Generator], Tensor]


@dataclass(frozen=True)
class Case:
    """`function` of operands of these shapes with values from `draw`; of an image, if a convolution made the first.

    A `layer`'s function makes a module, whose parameters are operands too; `takes_indices` adds an int64 input.
    """

    name: str
    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    draw: Draw
    is_image: bool = False
    is_layer: bool = False
    takes_indices: bool = False
    tolerance: float = OPERATOR


def normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator)


def between(low: float, high: float) -> Draw:
    return lambda shape, generator: low + (high - low) * torch.rand(shape, generator=generator)


def distinct(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """No two alike and none near a half or a whole number: orders and roundings are then the same on both sides."""
    count = math.prod(shape)
    return ((torch.randperm(count, generator=generator).float() + 0.37) / count * 4 - 2).reshape(shape)


def case(
    name: str,
    function: Callable[..., Any],
    *shapes: tuple[int, ...],
    draw: Draw = normal,
    takes_indices: bool = False,
    tolerance: float = OPERATOR,
) -> Case:
    return Case(name, function, shapes, draw, takes_indices=takes_indices, tolerance=tolerance)


def image(name: str, function: Callable[..., Any], shape: tuple[int, ...] = IMAGE, tolerance: float = OPERATOR) -> Case:
    """The operand comes from a convolution and the result is squared, so the layout pass takes both for images."""
    return Case(name, function, (shape,), normal, is_image=True, tolerance=tolerance)


def layer(
    name: str,
    make: Callable[[], nn.Module],
    *shapes: tuple[int, ...],
    is_image: bool = False,
    takes_indices: bool = False,
    tolerance: float = OPERATOR,
) -> Case:
    return Case(name, make, shapes, normal, is_image, True, takes_indices, tolerance)


class Operands(nn.Module):
    """One case and its operands."""

    def __init__(self, made: Case, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.is_image, self.takes_indices = made.is_image, made.takes_indices
        self.function = made.function() if made.is_layer else made.function
        for index, shape in enumerate(made.shapes):
            self.register_parameter(f"x{index}", nn.Parameter(made.draw(shape, generator)))

    def forward(self, zero: Tensor, indices: Tensor, picture: Tensor | None) -> Any:
        values = [value + zero for name, value in self._parameters.items() if name.startswith("x")]
        if self.is_image:
            _, channels, height, width = values[0].shape
            values[0] = picture[:, :channels, :height, :width] + values[0]
        result = self.function(*values, indices) if self.takes_indices else self.function(*values)
        return pytree.tree_map(lambda y: y + y * y / 4, result) if self.is_image else result


class Bundle(nn.Module):
    """The cases side by side. Every operand is added to a zero of the input, since a layer is what reads the input."""

    def __init__(self, cases: Sequence[Case]) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.picture = nn.Conv2d(3, LARGEST_IMAGE[1], 1) if any(each.is_image for each in cases) else None
            self.cases = nn.ModuleDict({each.name: Operands(each, seed) for seed, each in enumerate(cases)})

    def forward(self, x: Tensor, indices: Tensor) -> tuple[Any, ...]:
        zero = x.sum()
        samples, _, height, width = LARGEST_IMAGE
        picture = (
            None if self.picture is None else self.picture(x.reshape(1, 3, 1, 1).expand(samples, 3, height, width))
        )
        return tuple(part(zero, indices[0], picture) for part in self.cases.values())


INPUTS = (torch.zeros(1, 3), torch.tensor([[3, 0, 2, 2, 1, 3]]))


class WeightedOutputs:
    """The sum of every float output times its piece of the target."""

    def __call__(self, output: Any, target: Tensor) -> Tensor:
        floats = _floats(output)
        pieces = target.reshape(-1).split([part.numel() for part in floats])
        terms = [(part * piece.view(part.shape)).sum() for part, piece in zip(floats, pieces, strict=True)]
        return torch.stack(terms).sum()

    def target_example(self, output: Any) -> Tensor:
        return torch.zeros(1, sum(part.numel() for part in _floats(output)))


LOSS = WeightedOutputs()
INDICES = {"x1": INPUTS[1].numpy()}


def _floats(output: Any) -> list[Tensor]:
    return [part for part in pytree.tree_leaves(output) if part.is_floating_point()]


def job_of(bundle: Bundle, dropout: bool = False) -> Job:
    loss = Loss("weighted_outputs", False, lambda output, target, _: LOSS(output, target), LOSS.target_example)
    return Job(bundle, INPUTS, loss, Request(train=("cases",), exact=True, dropout=dropout))


def compare(cases: Sequence[Case], folder: Path) -> dict[str, dict[str, float]]:
    """Compile the cases together; of each, the relative errors of its outputs and of its operands' gradients."""
    bundle = Bundle(cases).eval()
    compiled = Compiled(trace(job_of(bundle)), folder)
    expected = bundle(*INPUTS)
    shape = LOSS.target_example(expected).shape
    target = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    LOSS(expected, target).backward()
    found, gradients = compiled.predict(), compiled.gradients(target)
    errors: dict[str, dict[str, float]] = {}
    for name, outputs in zip(bundle.cases, expected, strict=True):
        own = errors[name] = {}
        for index, output in enumerate(pytree.tree_leaves(outputs)):
            own[f"output {index}"] = relative_error(found.pop(0), output.detach())
        for parameter, value in bundle.cases[name].named_parameters():
            own[f"gradient of {parameter}"] = relative_error(gradients[f"cases.{name}.{parameter}"], value.grad)
    return errors


@cache
def scheduler() -> Scheduler:
    """One for all, since it remembers."""
    return Scheduler(find_target("native"))


class Compiled:
    """The prediction and gradient programs of a traced job, as an artifact has them, on one thread."""

    def __init__(self, traced: Traced, folder: Path) -> None:
        self.state, self.steps, planned = StateTable(), {}, []
        builder = KernelBuilder(scheduler())
        for name, source, passes in (
            ("gradients", traced.training, pipeline.gradient_passes()),
            ("predict", traced.forward, pipeline.prediction_passes()),
        ):
            step = self.steps[name] = pipeline.run(source, passes)
            program = make_program(name, lower(step), step, scheduler())
            planned.append(Planned(program, plan_arena(program)))
            self.state.add(name, step)
            builder.add(program, planned[-1].placement)
        kernels = builder.build(folder, lambda *_: None)
        description = describe(self.steps, self.state.entries)
        driver = folder / "step.c"
        driver.write_text(write_driver(planned, self.state, description, kernels, folder.name) + NO_TRAINING)
        link_library(driver, kernels.objects, folder / "libstep.so", find_target("native"))
        self.library = Library(folder / "libstep.so", folder.name)
        self.handle = self.library.create(1)
        entries = [entry.with_layout() for entry in description.state]
        values = State(entries, self.library, self.handle)
        for role, name, _ in values.items("parameter", "buffer"):
            values.set(role, name, traced.original[name].numpy())
        for role, name, _ in values.items("constant"):
            values.set_physical(role, name, self.state.constants[name].numpy())
        self.entries = {entry["name"]: entry for entry in entries if entry["role"] == "parameter"}

    def predict(self) -> list[np.ndarray]:
        outputs = [_empty(node) for node in self.steps["predict"].results()]
        self.library.predict(self.handle, self._doors(self.steps["predict"], INDICES), outputs)
        return outputs

    def gradients(self, target: Tensor, seed: int = 0) -> dict[str, np.ndarray]:
        step = self.steps["gradients"]
        names = [value.name for value in step.outputs if value.role is Role.GRADIENT]
        physical = [aligned_empty(physical_shape(self.entries[name]), "float32") for name in names]
        given = {**INDICES, "target": target.numpy(), "seed": np.array(seed)}
        self.library.gradients(self.handle, self._doors(step, given), physical)
        return {name: unpack(self.entries[name], array) for name, array in zip(names, physical, strict=True)}

    @staticmethod
    def _doors(step: Step, given: dict[str, np.ndarray]) -> list[np.ndarray]:
        """What the caller hands in, zeros where nothing else is said, in the order of the roles."""
        nodes = dict(zip(step.inputs, step.placeholders(), strict=True))
        doors: list[Value] = sorted((v for v in nodes if v.role in DOORS), key=lambda value: DOORS.index(value.role))
        arrays = []
        for value in doors:
            arrays.append(_empty(nodes[value]))
            arrays[-1][...] = given.get(value.name, 0)
        return arrays


def _empty(node: torch.fx.Node) -> np.ndarray:
    value = node.meta["val"]
    return aligned_empty(value.shape, str(value.dtype).removeprefix("torch."))


def explain(cases: Sequence[Case]) -> dict[str, str]:
    """Case by case, what cannot be traced or has no translation."""
    found = {}
    for each in cases:
        try:
            _, missing = find_unsupported(job_of(Bundle([each]).eval()))
        except Exception as error:  # noqa: BLE001 - whatever a broken case raises is what the reader wants to see
            found[each.name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            continue
        if missing:
            found[each.name] = " | ".join(map(str, missing))
    return found


def operators(cases: Sequence[Case]) -> set[str]:
    """The operators in the joint graph of the cases, as the passes get it."""
    graph = trace(job_of(Bundle(cases).eval())).training.body.graph
    return {str(node.target) for node in graph.nodes if node.op == "call_function"}
