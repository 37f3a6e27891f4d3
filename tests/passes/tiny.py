"""What every pass test needs: a tiny traced step, its numbers in eager PyTorch, and its text against a golden file."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, fx, nn

from gfcompile.frontend.losses import resolve_loss
from gfcompile.frontend.survey import survey
from gfcompile.frontend.trace import trace_forward, trace_training, working_copy
from gfcompile.graph.text import print_graph
from gfcompile.passes.base import Pass
from gfcompile.plan import Plan, PlannedLayer, make_plan, matches
from gfcompile.settings.schema import Request
from gfcompile.step import STATE, Role, Step, Value
from tests.models import initialise

GOLDEN = Path(__file__).parents[1] / "golden"
TIGHT = {torch.float64: 1e-12, torch.float32: 2e-6}  # a few roundings of sums of tens of terms
REORDERED = 1e-10  # float64 sums in another order, some of them differences (BatchNorm): another formula is far above
LR = 0.125  # exact in float32
SIGNED = ("momentum_buffer/", "exp_avg/", "grad_avg/")  # optimizer state that may be negative
Numbers = dict[Value, Tensor]


def dot(output: Tensor, target: Tensor) -> Tensor:
    """A loss whose gradient is the target itself: golden graphs stay short, and every gradient entry differs."""
    return (output * target).sum()


class Network(nn.Module):
    """conv-bn-relu, a strided biased convolution, a linear head: the least that every pass finds something in."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 2, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(2)
        self.conv = nn.Conv2d(2, 3, 3, stride=2, padding=1)
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(self.norm(self.stem(x)).relu()).mean((2, 3)))


NETWORK_INPUT = (2, 1, 5, 5)


def traced(model: nn.Module, shape: tuple[int, ...], request: Request) -> Step:
    """The training step of `model` as the tracer gives it, with reproducible weights."""
    module = working_copy(model)
    _fill(module)
    example = torch.zeros(shape)
    layers = survey(trace_forward(module, (example,)), module)
    plan = make_plan(layers, request)
    with torch.no_grad():
        output = module(example)
    return trace_training(module, (example,), torch.zeros_like(output), resolve_loss(dot), plan)


def network_step(*passes: Pass, **request: object) -> Step:
    """The step of `Network` (its last convolution trained, r = 2, unless told otherwise) after these passes."""
    step = _traced_network(tuple(sorted({"layers": 1, **request}.items())))
    return applied(duplicate(step), *passes)


@cache
def _traced_network(request: tuple[tuple[str, object], ...]) -> Step:
    settings = dict(request)
    return traced(Network(), NETWORK_INPUT, Request(**settings))  # type: ignore[arg-type]


def duplicate(step: Step) -> Step:
    """A copy that a pass may change: tracing costs a second, copying nothing."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(step.body.graph, {}))
    body = fx.GraphModule(step.body, graph)
    return replace(
        step,
        body=body,
        inputs=list(step.inputs),
        outputs=list(step.outputs),
        tensors=dict(step.tensors),
        layouts=dict(step.layouts),
        log=[],
    )


def applied(step: Step, *passes: Pass) -> Step:
    for each in passes:
        step = each.run(step)
    return step


def filtered(
    model: nn.Module,
    shape: tuple[int, ...],
    *,
    r: int | Mapping[str, int] = 2,
    batchnorm: str = "eval",
    exact: Sequence[str] = (),
    frozen: Sequence[str] = (),
) -> Step:
    """The traced step with every convolution filtered, `exact` ones aside, and everything trained but `frozen`.

    `r` may name modules, "*" for the others. The plan is made here, not by a survey: that would double the time.
    """
    patches = {"*": r} if isinstance(r, int) else {"*": 2, **r}
    module = working_copy(model)
    _fill(module)
    layers, parameters = [], set()
    for name, part in module.named_modules():
        own = [f"{name}.{leaf}" for leaf, _ in part.named_parameters(recurse=False)]
        if not own or any(matches(name, pattern) for pattern in frozen):
            continue
        is_filtered = isinstance(part, nn.Conv2d) and name not in exact
        patch = patches.get(name, patches["*"]) if is_filtered else None
        layers.append(PlannedLayer(name, "conv" if is_filtered else "other", "named", patch, None))
        parameters.update(own)
    plan = Plan(tuple(layers), frozenset(parameters), False, {"*": batchnorm}, False)
    with torch.no_grad():
        output = module(torch.zeros(shape))
    return trace_training(module, (torch.zeros(shape),), torch.zeros_like(output), resolve_loss(dot), plan)


class _Wide(fx.Interpreter):
    """Constants that the graph writes in float32 are made in float64: some operators do not promote."""

    def call_function(self, target: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        wide = {**kwargs, "dtype": torch.float64} if kwargs.get("dtype") is torch.float32 else kwargs
        return super().call_function(target, args, wide)


def numbers(step: Step, dtype: torch.dtype = torch.float64) -> Numbers:
    """Run the graph in plain PyTorch on arguments that depend on their names alone; packed results are unpacked."""
    body = _Wide(step.body).run if dtype is torch.float64 else step.run
    with torch.no_grad():
        results = body(*arguments(step, dtype))
    return {value: _logical(step, value, result) for value, result in zip(step.outputs, results, strict=True)}


def arguments(step: Step, dtype: torch.dtype) -> list[Tensor]:
    return [_argument(step, node, value, dtype) for node, value in zip(step.placeholders(), step.inputs, strict=True)]


def node_values(step: Step, dtype: torch.dtype = torch.float64) -> dict[fx.Node, Tensor]:
    """Every node's value on the same arguments."""
    kind = _Wide if dtype is torch.float64 else fx.Interpreter
    interpreter = kind(step.body, garbage_collect_values=False)
    with torch.no_grad():
        interpreter.run(*arguments(step, dtype))
    return interpreter.env


def nodes(step: Step, target: object) -> list[fx.Node]:
    return [node for node in step.body.graph.nodes if node.target is target]


def text(step: Step) -> str:
    """The graph without the log: equal graphs give equal text."""
    return "".join(line for line in print_graph(step, "").splitlines(keepends=True) if not line.startswith("#"))


def assert_same_numbers(
    before: Numbers, after: Numbers, dtype: torch.dtype = torch.float64, relative: float | None = None
) -> None:
    """Every output that both have agrees; `dtype` chooses the tolerance where none is given."""
    common = before.keys() & after.keys()
    assert common, "nothing to compare"
    for value in common:
        assert_close(before[value], after[value], TIGHT[dtype] if relative is None else relative, str(value))


def assert_close(expected: Tensor | np.ndarray, actual: Tensor | np.ndarray, relative: float, what: str = "") -> None:
    """Norm of the difference, relative to the norm of what is expected; shapes and non-zero values required."""
    one, other = np.asarray(expected, np.float64), np.asarray(actual, np.float64)
    assert one.shape == other.shape, f"{what}: {one.shape} is not {other.shape}"
    assert np.linalg.norm(one) > 0, f"{what}: all zero, so the comparison proves nothing"
    assert np.linalg.norm(one - other) <= relative * np.linalg.norm(one), what


def assert_golden(name: str, step: Step) -> None:
    """The graph's text equals tests/golden/NAME.txt; GF_UPDATE_GOLDEN=1 writes it instead."""
    path, actual = GOLDEN / f"{name}.txt", text(step)
    if os.environ.get("GF_UPDATE_GOLDEN") == "1":
        path.write_text(actual, encoding="utf-8")
    if not path.exists():
        pytest.fail(f"{path} is missing; write it with GF_UPDATE_GOLDEN=1 and review it")
    assert actual == path.read_text(encoding="utf-8")


def assert_second_run_changes_nothing(rewrite: Pass, step: Step) -> None:
    """`step` has been through the pass once; again it reports no site and leaves the text as it is."""
    before = text(step)
    after = rewrite.run(step)
    assert after.log[-1].sites == []
    assert text(after) == before


def _fill(module: nn.Module) -> None:
    """Weights and BatchNorm values that are neither 0 nor 1, the same every time."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        initialise(module)
        for part in module.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.running_mean.normal_(0.0, 0.1)
                for scale in (part.running_var, part.weight):
                    if scale is not None:
                        scale.uniform_(0.6, 2.0)
                if part.bias is not None:
                    part.bias.normal_(0.0, 0.1)


def _argument(step: Step, node: fx.Node, value: Value, dtype: torch.dtype) -> Tensor:
    if (value.role in STATE and value.role is not Role.OPTIMIZER) or value.role is Role.CONSTANT:
        tensor = step.tensors[value.name]
    elif value.role is Role.LR:
        tensor = torch.tensor(LR)
    elif value.role is Role.CHANNELS:
        tensor = torch.tensor(step.plan.draws()[value.name].spread(), dtype=torch.int32)
    elif value.role is Role.SAMPLE_WEIGHT:
        tensor = torch.ones(node.meta["val"].shape)
    else:
        shape = step.tensors[value.parameter].shape if value.parameter in step.tensors else node.meta["val"].shape
        generator = torch.Generator().manual_seed(zlib.crc32(f"{value.role} {value.name}".encode()))
        tensor = torch.randn(shape, generator=generator)
        if value.role is Role.OPTIMIZER and not value.name.startswith(SIGNED):
            tensor = 9 + tensor.square().round()  # means of squares, above the squared means; a count
    layout = step.layouts.get(value.parameter)
    tensor = layout.pack(tensor) if layout is not None and value.role in STATE else tensor
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _logical(step: Step, value: Value, result: Tensor) -> Tensor:
    layout = step.layouts.get(value.parameter)
    return result if layout is None else layout.unpack(result)


def site_names(step: Step) -> list[str]:
    return step.log[-1].sites
