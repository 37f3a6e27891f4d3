"""Names of weights: an initializer's own where it is a path of modules, otherwise its node's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from torch import nn

from gfcompile.frontend.onnx.graph import Graph, Node, all_nodes
from gfcompile.frontend.onnx.weights import Use

PROGRAM = "_program"  # what an OnnxModule holds beside its state
_DOTTED = re.compile(r"\w+(\.\w+)+", re.ASCII)
_WITH_KERNEL = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_RESERVED = frozenset(dir(nn.Module())) | {PROGRAM}


class Names:
    """The names given out so far: no two alike, and nothing below the name of a weight."""

    def __init__(self) -> None:
        self._weights: set[str] = set()
        self._modules: set[str] = set()
        self._numbers: dict[str, int] = {}  # where to go on looking

    def take_module(self, path: str) -> str:
        """The path, or with a number after it, for a module that is nowhere yet."""
        free = next(option for option in self._numbered(path) if self._is_free(option))
        self._modules.update(_with_parents(free))
        return free

    def take_weights(self, module: str, leaves: Iterable[str]) -> str:
        """The module's path, or with a number after it, where all these weights are free."""
        wanted = list(leaves)
        free = next(m for m in self._numbered(module) if all(self._is_free(f"{m}.{leaf}") for leaf in wanted))
        self._modules.update(_with_parents(free))
        self._weights.update(f"{free}.{leaf}" for leaf in wanted)
        return free

    def _numbered(self, path: str) -> Iterator[str]:
        """The path, then with the numbers that were not refused before."""
        yield path
        while True:
            number = self._numbers.get(path, 2)
            yield f"{path}_{number}"
            self._numbers[path] = number + 1

    def _is_free(self, path: str) -> bool:
        return path not in self._modules and not self._weights.intersection(_with_parents(path))


def name_weights(graph: Graph, weights: Mapping[str, Use], names: Names) -> dict[str, str]:
    """A state_dict name for each weight. Those of one node stay together: a layer is the module its weights are in."""
    producers = {name: node for node in all_nodes(graph.body) for name in node.outputs}
    paths: dict[str, str] = {}
    for name in weights:
        if _DOTTED.fullmatch(name):
            module, _, leaf = _allowed(name).rpartition(".")
            paths[name] = f"{names.take_weights(module, [leaf])}.{leaf}"
    owners: dict[str, list[str]] = {}  # node -> its weights that have no path of their own
    for name, use in weights.items():
        if name not in paths:
            owners.setdefault(_owner(use, producers).name, []).append(name)
    for listed in owners.values():
        module = module_path(_owner(weights[listed[0]], producers), weights)
        leaves = _distinct([weights[name].leaf for name in listed])
        module = names.take_weights(module, leaves)
        paths.update((name, f"{module}.{leaf}") for name, leaf in zip(listed, leaves))
    return paths


def module_path(node: Node, weights: Mapping[str, Use]) -> str:
    """Where the node's weights live: where one with a path does, else as the node's name says."""
    for value in node.inputs:
        if value in weights and _DOTTED.fullmatch(value):
            return _allowed(value.rpartition(".")[0])
    return node_path(node)


def node_path(node: Node) -> str:
    """`/layer4/layer4.0/conv1/Conv` ==> `layer4.0.conv1`: scopes that repeat their parent, then the operator."""
    if node.scope:
        return _allowed(node.scope)
    scopes = [part for part in node.name.split("/") if part]
    path: list[str] = []
    for scope in scopes[:-1] if len(scopes) > 1 else scopes:
        if path and scope.startswith(path[-1] + "."):
            path.pop()
        path.append(scope)
    return _allowed(".".join(path))


def _owner(use: Use, producers: Mapping[str, Node]) -> Node:
    """The bias a separate Add adds belongs to the layer before it."""
    if use.node.op != "Add":
        return use.node
    before = [producers[value] for value in use.node.inputs if value in producers]
    return next((node for node in before if node.op in _WITH_KERNEL), use.node)


def _distinct(leaves: list[str]) -> list[str]:
    """A number after a leaf that came before, such as both operands of one MatMul."""
    return [leaf if leaf not in leaves[:i] else f"{leaf}_{i}" for i, leaf in enumerate(leaves)]


def _with_parents(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[: length + 1]) for length in range(len(parts))]


def _allowed(path: str) -> str:
    """As torch takes it: words between dots, none of them an attribute of nn.Module such as `half`."""
    words = [re.sub(r"\W", "_", part, flags=re.ASCII) for part in path.split(".") if part]
    return ".".join(word + "_" if word in _RESERVED else word for word in words) or "layer"
