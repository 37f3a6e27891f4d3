"""The graph as an nn.Module: it interprets the nodes, so tracing it yields their torch operators and nothing else.

Values are tensors or numpy arrays. A node of numpy arrays alone is shape arithmetic and is computed as such; when the
module is traced with a batch of fixed sizes, only integers are left of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from gfcompile.frontend.onnx.graph import Block, Graph, Node, all_nodes, reads
from gfcompile.frontend.onnx.host import HostNode, shape_of_value
from gfcompile.frontend.onnx.names import Names, module_path, name_weights, node_path
from gfcompile.frontend.onnx.operators import TABLE
from gfcompile.frontend.onnx.weights import SIZES, Use, find_traced

Value: TypeAlias = Any  # a Tensor, an np.ndarray, or None for an absent input
_AFFINE, _STATISTICS = ("weight", "bias"), ("running_mean", "running_var")


class BatchNorm(nn.BatchNorm2d):
    """For inputs of any rank: ONNX does not tell it."""

    def _check_input_dim(self, input: Tensor) -> None:
        pass


@dataclass(frozen=True)
class Program:
    """What an OnnxModule interprets, by name: `layers` node -> module that computes it, `state` initializer -> state,
    `host` nodes of known values, `dying` node -> values that nobody reads after it."""

    graph: Graph
    layers: Mapping[str, str]
    state: Mapping[str, str]
    host: Mapping[str, HostNode]
    dying: Mapping[str, list[str]]


class OnnxModule(nn.Module):
    """An ONNX graph with its weights as parameters; built in eval mode."""

    _program: Program

    def forward(self, *inputs: Tensor) -> Any:
        graph = self._program.graph
        if len(inputs) != len(graph.inputs):
            raise TypeError(f"takes {len(graph.inputs)} inputs: {', '.join(value.name for value in graph.inputs)}")
        values: dict[str, Value] = dict(graph.constants)
        values.update((name, _attribute(self, path)) for name, path in self._program.state.items())
        values.update((value.name, tensor) for value, tensor in zip(graph.inputs, inputs))
        self._run(graph.body, values)
        results = tuple(_tensor(values[name]) for name in graph.body.outputs)
        return results[0] if len(results) == 1 else results

    def _run(self, block: Block, values: dict[str, Value]) -> None:
        for node in block.nodes:
            arguments: list[Value] = [values[name] if name else None for name in node.inputs]
            if node.branches:
                branch = node.branches[0 if arguments[0].item() else 1]
                self._run(branch, values)
                results = [values[name] for name in branch.outputs]
            else:
                results = self._compute(node, arguments)
            values.update((name, result) for name, result in zip(node.outputs, results) if name)
            for name in self._program.dying.get(node.name, ()):
                del values[name]

    def _compute(self, node: Node, arguments: list[Value]) -> list[Value]:
        if node.op == "Shape":
            return [shape_of_value(arguments[0], node.get("start", 0), node.get("end"))]
        if node.op == "Size":
            return [np.array(np.prod(shape_of_value(arguments[0])), np.int64)]
        if node.name in self._program.host:
            known = iter(self._program.host[node.name](*arguments))
            return [next(known) if name else None for name in node.outputs]
        if node.name in self._program.layers:
            return [self.get_submodule(self._program.layers[node.name])(arguments[0])]
        result = TABLE[node.op].run(node, *_arguments(node, arguments))
        return list(result) if isinstance(result, (tuple, list)) else [result]


def build(graph: Graph, weights: Mapping[str, Use]) -> tuple[OnnxModule, dict[str, str]]:
    """The module of a graph, and where in its state each weight is.

    Batch norms and dropouts are modules below it: the compiler sets their mode.
    """
    module, names = OnnxModule(), Names()
    layers: dict[str, str] = {}
    state: dict[str, str] = {}
    nodes = list(all_nodes(graph.body))
    for node in nodes:
        if node.op == "BatchNormalization" and all(name in weights for name in node.inputs[1:5]):
            layers[node.name] = _add_batch_norm(module, node, graph, weights, state, names)
    others = {name: use for name, use in weights.items() if name not in state}
    for name, path in name_weights(graph, others, names).items():
        _add_weight(module, path, others[name].leaf, _own(graph.constants[name]))
        state[name] = path
    for node in nodes:
        if node.op == "Dropout":
            layers[node.name] = path = names.take_module(node_path(node))
            _owner(module, path).add_module(path.rpartition(".")[2], nn.Dropout(_ratio(graph, node)))
    traced = find_traced(graph, weights)
    host = {
        node.name: HostNode(graph.protos[node.name], node.opset)
        for node in nodes
        if not node.branches and node.op not in SIZES and not traced.intersection(node.inputs)
    }
    module._program = Program(graph, layers, state, host, _last_reads(graph.body))
    return module.eval(), state


# ---- the state


def _add_batch_norm(
    module: nn.Module, node: Node, graph: Graph, weights: Mapping[str, Use], state: dict[str, str], names: Names
) -> str:
    """A tensor that an earlier batch norm has already is shared with it."""
    initializers = node.inputs[1:5]
    path = names.take_module(module_path(node, weights))
    names.take_weights(path, ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"))
    size, momentum = graph.constants[initializers[0]].size, 1 - node.get("momentum", 0.9)
    layer = BatchNorm(size, eps=node.get("epsilon", 1e-5), momentum=momentum)
    for leaf, name in zip((*_AFFINE, *_STATISTICS), initializers):
        tensor = _attribute(module, state[name]) if name in state else _own(graph.constants[name])
        if leaf in _AFFINE and not isinstance(tensor, nn.Parameter):
            tensor = nn.Parameter(tensor)
        setattr(layer, leaf, tensor if leaf in _AFFINE else tensor.detach())
        state.setdefault(name, f"{path}.{leaf}")
    _owner(module, path).add_module(path.rpartition(".")[2], layer)
    return path


def _add_weight(module: nn.Module, path: str, kind: str, tensor: Tensor) -> None:
    owner, leaf = _owner(module, path), path.rpartition(".")[2]
    if kind in _STATISTICS:
        owner.register_buffer(leaf, tensor)
    else:
        owner.register_parameter(leaf, nn.Parameter(tensor))


def _owner(module: nn.Module, path: str) -> nn.Module:
    """The module above the path's last word; made where it is missing."""
    for part in path.split(".")[:-1]:
        if part not in module._modules:
            module.add_module(part, nn.Module())
        module = module._modules[part]
    return module


def _attribute(module: nn.Module, path: str) -> Any:
    owner, _, leaf = path.rpartition(".")
    return getattr(module.get_submodule(owner), leaf)


def _own(array: np.ndarray) -> Tensor:
    return torch.from_numpy(array.copy())


def _ratio(graph: Graph, node: Node) -> float:
    """An attribute up to opset 11, a constant input from then on."""
    if len(node.inputs) > 1 and node.inputs[1] in graph.constants:
        return graph.constants[node.inputs[1]].item()
    return node.get("ratio", 0.5)


# ---- running a node


def _arguments(node: Node, values: list[Value]) -> Iterator[Any]:
    operator = TABLE[node.op]
    rank = max(value.ndim for value in values if isinstance(value, Tensor))
    for slot, value in enumerate(values):
        if not isinstance(value, np.ndarray) or slot in operator.host or slot in operator.either:
            yield value
        elif operator.numbers and value.size == 1 and value.ndim <= rank:
            yield value.item()
        else:
            yield _tensor(value)


def _tensor(value: Value) -> Value:
    return torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value


def _last_reads(block: Block) -> dict[str, list[str]]:
    """An eager run should not hold every activation to its end."""
    last = {name: node.name for node in block.nodes for name in reads(node)}
    made = {name for node in block.nodes for name in node.outputs}
    dying: dict[str, list[str]] = {}
    for name in made & last.keys() - set(block.outputs):
        dying.setdefault(last[name], []).append(name)
    return dying
