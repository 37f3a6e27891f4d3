"""The shape of every pass: `find` only looks and yields sites or refusals, `rewrite` only changes one site."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from gfcompile.errors import ContractError
from gfcompile.step import Event, Refusal, Step, Value

Found = Iterator[fx.Node | Refusal]


class Pass(ABC):
    """One rewrite. The base class runs it, checks the result, and records what it did."""

    name: ClassVar[str]

    @abstractmethod
    def find(self, step: Step) -> Found:
        """Yield the nodes to rewrite, and a refusal with its reason for each that was wanted but cannot be."""

    @abstractmethod
    def rewrite(self, step: Step, site: fx.Node) -> None:
        """Change one site in place."""

    def rewrite_all(self, step: Step, sites: list[fx.Node]) -> None:
        """Change every site. A pass whose rewrites share an analysis of the whole graph makes it here, once."""
        for site in sites:
            self.rewrite(step, site)

    def describe(self, site: fx.Node) -> str:
        """How the log names a site."""
        return site.name

    def run(self, step: Step) -> Step:
        """Find, rewrite, check, record."""
        start = time.perf_counter()
        found = list(self.find(step))
        sites = [item for item in found if isinstance(item, fx.Node)]
        names = [self.describe(site) for site in sites]
        self.rewrite_all(step, sites)
        step.log.append(
            Event(self.name, names, [item for item in found if isinstance(item, Refusal)], time.perf_counter() - start)
        )
        check(step, self.name)
        return step


def check(step: Step, pass_name: str) -> None:
    """The contract between passes: a well-formed graph, a signature that fits it, shapes on every tensor."""
    step.body.graph.lint()
    if len(step.placeholders()) != len(step.inputs) or len(step.results()) != len(step.outputs):
        raise ContractError(f"pass '{pass_name}' left a graph that does not fit its signature; replay with --dump DIR")
    for node in step.body.graph.nodes:
        if node.op in ("placeholder", "call_function") and "val" not in node.meta:
            raise ContractError(f"pass '{pass_name}' left '{node.name}' without a shape; replay with --dump DIR")


def fake_mode_of(graph: fx.Graph) -> FakeTensorMode:
    """The mode under which the graph was traced: shapes of new nodes are inferred in it."""
    for node in graph.nodes:
        if isinstance(node.meta.get("val"), FakeTensor):
            mode: FakeTensorMode = node.meta["val"].fake_mode
            return mode
    raise ContractError("the graph has no traced tensors")


def infer(graph: fx.Graph, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What `target` gives for these arguments, as fake tensors."""
    values = fx.map_arg((args, kwargs), lambda node: node.meta["val"])
    with fake_mode_of(graph), torch.no_grad():
        return target(*values[0], **values[1])


def emit(graph: fx.Graph, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
    """Insert a call at the graph's insertion point, with its shape."""
    node = graph.call_function(target, args, kwargs)
    node.meta["val"] = infer(graph, target, args, kwargs)
    return node


def fake_like(graph: fx.Graph, shape: tuple[int, ...], dtype: torch.dtype) -> Any:
    """A fake tensor for a new placeholder."""
    with fake_mode_of(graph):
        return torch.empty(shape, dtype=dtype)


def input_of(step: Step, value: Value, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> fx.Node:
    """The step's input of this role and name; a new one behind the others if it has none."""
    if value in step.inputs:
        return step.placeholder(value.role, value.name)
    graph = step.body.graph
    with graph.inserting_after(step.placeholders()[-1]):
        node = graph.placeholder(f"{value.role}_{value.name}".replace(".", "_").replace("/", "_"))
    node.meta["val"] = fake_like(graph, shape, dtype)
    step.inputs.append(value)
    return node


def operator_name(node: fx.Node) -> str:
    """`mul` for aten.mul.Tensor, `channel_mix` for gf.channel_mix.default."""
    parts = str(node.target).split(".")
    return parts[1] if len(parts) > 1 else node.name


def shape_of(node: fx.Node) -> tuple[int, ...]:
    return tuple(int(size) for size in node.meta["val"].shape)
