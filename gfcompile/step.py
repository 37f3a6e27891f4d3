"""The one structure that travels through the compiler: a graph, its signature, the plan, and what was done to it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import takewhile
from typing import Any

from torch import Tensor, fx

from gfcompile.geometry.layouts import WeightLayout
from gfcompile.plan import Plan

Visit = Callable[[fx.Node, tuple[Any, ...], Any], None]  # a call, its arguments' values, its result


class Role(StrEnum):
    """What a graph's input or output stands for."""

    INPUT = "input"
    FEATURE = "feature"
    TARGET = "target"
    SAMPLE_WEIGHT = "sample_weight"
    SEED = "seed"
    CHANNELS = "channels"
    LR = "lr"
    PARAMETER = "parameter"
    OPTIMIZER = "optimizer"
    BUFFER = "buffer"
    CONSTANT = "constant"
    LOSS = "loss"
    OUTPUT = "output"
    GRADIENT = "gradient"


# the caller's inputs, in this order; a step has inputs or, after a frozen prefix, features
DOORS = (Role.INPUT, Role.FEATURE, Role.TARGET, Role.SAMPLE_WEIGHT, Role.SEED, Role.CHANNELS)
STATE = frozenset({Role.PARAMETER, Role.OPTIMIZER, Role.BUFFER})


@dataclass(frozen=True)
class Value:
    """One input or output: its role and the model's own name for it (`layer4.1.conv2.weight`).

    Optimizer state is named `kind/parameter` (`exp_avg/layer4.1.conv2.weight`); what belongs to no parameter, `kind`.
    """

    role: Role
    name: str

    @property
    def parameter(self) -> str:
        """The name under which its layout is known: optimizer state lies in memory as its parameter does."""
        return self.name.partition("/")[2] if self.role is Role.OPTIMIZER else self.name


@dataclass(frozen=True)
class Refusal:
    """A layer that stays exact, and why."""

    layer: str
    reason: str


@dataclass(frozen=True)
class Materialised:
    """A gradient that exists at full resolution: its node, its shape [N, C, H, W], and why."""

    node: str
    shape: tuple[int, ...]
    reason: str


@dataclass
class Event:
    """What one pass did: its sites by layer or node name, its refusals, how long it took, what it could not shrink."""

    pass_name: str
    sites: list[str]
    refusals: list[Refusal]
    seconds: float
    materialised: list[Materialised] = field(default_factory=list)


class Body(fx.GraphModule):
    """A graph with what it refers to. It is interpreted: fx would write it as Python code each time it is set."""

    def recompile(self) -> None:
        """Nobody reads the code."""


@dataclass
class Step:
    """`inputs[i]` describes the body's i-th placeholder, `outputs[i]` its i-th output.

    Nothing writes into the `tensors`: the steps of a model share them. `origins` tells of a constant that a pass
    computed which of the model's parameters it mainly comes from. `evaluated` keeps what was computed of frozen
    tensors, for all steps of a model: each of its programs wants the same.
    """

    body: Body
    inputs: list[Value]
    outputs: list[Value]
    plan: Plan
    tensors: dict[str, Tensor]
    updated_buffers: frozenset[str] = frozenset()
    layouts: dict[str, WeightLayout] = field(default_factory=dict)
    log: list[Event] = field(default_factory=list)
    origins: dict[str, str] = field(default_factory=dict)
    evaluated: dict[Hashable, tuple[list[Tensor], Tensor]] = field(default_factory=dict, repr=False)

    def duplicate(self, plan: Plan) -> Step:
        """A copy for passes to change, under another plan for the same trained parameters; its log is empty."""
        graph = fx.Graph()
        graph.output(graph.graph_copy(self.body.graph, {}))
        body = Body(self.body, graph)
        signature = list(self.inputs), list(self.outputs)
        return Step(body, *signature, plan, dict(self.tensors), self.updated_buffers, evaluated=self.evaluated)

    def run(self, *inputs: Tensor, visit: Visit | None = None) -> tuple[Tensor, ...]:
        """The graph in plain PyTorch."""
        interpreter = fx.Interpreter(self.body) if visit is None else _Visited(self.body, visit)
        results: tuple[Tensor, ...] = interpreter.run(*inputs)
        return results

    def origin(self, value: Value) -> str | None:
        """The parameter that an input is, or comes from."""
        return value.name if value.role is Role.PARAMETER else self.origins.get(value.name)

    def placeholders(self) -> list[fx.Node]:
        """All come before the first call; what comes later does not count, and `check` refuses it."""
        return list(takewhile(lambda node: node.op == "placeholder", self.body.graph.nodes))

    def placeholder(self, role: Role, name: str) -> fx.Node:
        """The node of an input."""
        return self.placeholders()[self.inputs.index(Value(role, name))]

    def results(self) -> list[fx.Node]:
        """The nodes that are returned, in the order of `outputs`."""
        return list(self.body.graph.output_node().args[0])

    def loss(self) -> fx.Node:
        """The node that closes the forward pass."""
        return self.results()[[value.role for value in self.outputs].index(Role.LOSS)]

    def is_frozen(self, value: Value) -> bool:
        """Parameters that are not trained and buffers that the step does not update never change."""
        if value.role is Role.CONSTANT:
            return True
        if value.role is Role.PARAMETER:
            return value.name not in self.plan.trained_parameters
        return value.role is Role.BUFFER and value.name not in self.updated_buffers

    @property
    def refusals(self) -> list[Refusal]:
        """Those of every pass, in order."""
        return [refusal for event in self.log for refusal in event.refusals]


class _Visited(fx.Interpreter):
    """Shows every call to `visit` while the values that it reads are still there."""

    def __init__(self, body: Body, visit: Visit) -> None:
        super().__init__(body)
        self.visit = visit

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if n.op == "call_function":
            self.visit(n, self.fetch_args_kwargs_from_env(n)[0], result)
        return result
