"""Which constants of a graph are weights, and which values exist only while tensors run.

A value is *traced* if it comes from an input or a weight, and *known* otherwise: sizes and what is computed from
them stay numpy, so a traced graph sees plain integers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from gfcompile.errors import UserError
from gfcompile.frontend.onnx.graph import Block, Graph, Node, all_nodes
from gfcompile.frontend.onnx.host import ARITHMETIC
from gfcompile.frontend.onnx.operators import TABLE

SIZES = ("Shape", "Size")  # what they give is known whatever they read
_CONTROL = ("If",)
_FEW = 3


@dataclass(frozen=True)
class Use:
    """The first node that reads a weight, and the name the weight has there."""

    node: Node
    leaf: str


def find_weights(graph: Graph) -> dict[str, Use]:
    """Float constants that meet a traced value, directly or through nodes of constants alone (a stored transpose)."""
    producers = {name: node for node in all_nodes(graph.body) for name in node.outputs if name}
    weights: dict[str, Use] = {}
    while True:
        traced = find_traced(graph, weights)
        found: dict[str, Use] = {}
        for node in all_nodes(graph.body):
            if node.op in TABLE and traced.intersection(node.inputs):
                for name, leaf in _weights_read(node, graph, producers, traced):
                    found.setdefault(name, Use(node, leaf))
        if not found.keys() - weights.keys():
            return weights
        weights = {**found, **weights}


def _weights_read(node: Node, graph: Graph, producers: dict[str, Node], traced: set[str]) -> Iterator[tuple[str, str]]:
    """The weights among the node's inputs, or among those of the constant nodes above it, and their leaves."""
    above = [(node, "")]
    seen = {node.name}
    while above:
        reader, given = above.pop()
        operator = TABLE[reader.op]
        for slot, name in enumerate(reader.inputs):
            if slot in operator.host or slot in operator.either:
                continue
            leaf = given or operator.weights.get(slot, "")
            if name in graph.constants:
                constant = graph.constants[name]
                # a lone number in arithmetic is part of a formula, such as the 6 of ReLU6
                if constant.dtype.kind == "f" and (leaf or constant.size > 1):
                    yield name, leaf or ("bias" if reader.op in ("Add", "Sub") else "weight")
            elif name in producers and name not in traced:
                producer = producers[name]
                if producer.op in TABLE and producer.name not in seen:
                    seen.add(producer.name)
                    above.append((producer, leaf))


def find_traced(graph: Graph, weights: Iterable[str]) -> set[str]:
    """Names of the values that are tensors."""
    traced = {value.name for value in graph.inputs} | set(weights)
    _follow(graph.body, traced)
    return traced


def _follow(block: Block, traced: set[str]) -> None:
    for node in block.nodes:
        if node.op in SIZES:
            continue
        if node.op in _CONTROL:
            for branch in node.branches:
                _follow(branch, traced)
                traced.update(o for o, inner in zip(node.outputs, branch.outputs) if inner in traced)
        elif traced.intersection(node.inputs):
            traced.update(name for name in node.outputs if name)


# ---- what cannot be computed


def check_names(graph: Graph, path: str) -> None:
    """Refuse a graph that reads what nothing before has written."""
    _check_block(graph.body, {value.name for value in graph.inputs} | graph.constants.keys(), path)


def _check_block(block: Block, written: set[str], path: str) -> None:
    for node in block.nodes:
        missing = [name for name in node.inputs if name and name not in written]
        if missing:
            raise UserError(
                f"{path}: node '{node.name}' ({node.op}) reads '{missing[0]}', which nothing writes; export it again"
            )
        for branch in node.branches:
            _check_block(branch, set(written), path)
        written.update(node.outputs)
    missing = [name for name in block.outputs if name not in written]
    if missing:
        raise UserError(f"{path}: nothing writes the output '{missing[0]}'; export it again")


def check_operators(graph: Graph, path: str) -> None:
    """Refuse every unknown operator at once; nodes of constants alone are none of them."""
    traced = find_traced(graph, ())
    unknown: dict[str, list[str]] = {}
    for node in all_nodes(graph.body):
        is_known = node.op in TABLE or node.op in (*SIZES, *_CONTROL)
        is_constant = node.inputs and not traced.intersection(node.inputs) and node.op in ARITHMETIC
        if not is_known and not is_constant:
            unknown.setdefault(node.op, []).append(node.name)
    if unknown:
        parts = [f"{op} ({_times(names)})" for op, names in sorted(unknown.items())]
        raise UserError(
            f"{path}: operators that are not known: {', '.join(parts)};"
            " export the model without them, or give it as .pt2"
        )


def check_nodes(graph: Graph, weights: Iterable[str], path: str) -> None:
    """Refuse attributes and outputs that cannot be computed, and sizes that depend on values."""
    traced = find_traced(graph, weights)
    reads = Counter(name for node in all_nodes(graph.body) for name in node.inputs)
    reads.update(graph.body.outputs)
    for node in all_nodes(graph.body):
        if node.op in _CONTROL and node.inputs[0] in traced:
            _refuse(path, node, "its condition depends on the input's values")
        if node.op not in TABLE or not traced.intersection(node.inputs):
            continue
        operator = TABLE[node.op]
        reason = operator.refuse(node)
        if reason is not None:
            _refuse(path, node, reason)
        for slot in operator.host:
            if slot < len(node.inputs) and node.inputs[slot] in traced:
                _refuse(path, node, f"'{node.inputs[slot]}' depends on the input's values")
        for extra in node.outputs[operator.outputs :]:
            if reads[extra]:
                _refuse(path, node, f"its output '{extra}' is not computed")


def check_types(graph: Graph, weights: Iterable[str], path: str) -> None:
    """Training is in float32."""
    odd = {str(graph.constants[name].dtype) for name in weights} - {np.dtype(np.float32).name}
    if odd:
        raise UserError(f"{path}: has weights of type {', '.join(sorted(odd))}; export the model in float32")


def _refuse(path: str, node: Node, reason: str) -> None:
    raise UserError(
        f"{path}: node '{node.name}' ({node.op}): {reason}; export the model without it, or give it as .pt2"
    )


def _times(names: list[str]) -> str:
    listed = ", ".join(f"'{name}'" for name in names[:_FEW])
    return f"{len(names)}x: {listed}{', ...' if len(names) > _FEW else ''}"
