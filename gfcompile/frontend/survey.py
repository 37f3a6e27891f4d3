"""Read a forward graph: its layers in order of execution, their geometry, and which are residual projections."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from gfcompile.geometry import ConvGeometry
from gfcompile.plan import Layer

aten = torch.ops.aten
CONVOLUTION = aten.convolution.default
LINEAR = {aten.addmm.default, aten.mm.default, aten.linear.default, aten.bmm.default, aten.matmul.default}
RESAMPLERS = ("upsample", "interpolate", "index")


def survey(program: ExportedProgram, parameter_names: list[str]) -> list[Layer]:
    """Layers of a decomposed forward program; `parameter_names` are the model's, in its own order."""
    owner = _placeholder_parameters(program)
    by_module: dict[str, list[str]] = {}
    for name in parameter_names:
        by_module.setdefault(name.rpartition(".")[0], []).append(name)
    shortcuts = _shortcut_convs(program.graph)
    layers: list[Layer] = []
    seen: set[str] = set()
    for node in program.graph.nodes:
        if node.op != "call_function":
            continue
        for parameter in _parameters_read(node, owner):
            module = parameter.rpartition(".")[0]
            if module in seen:
                continue
            seen.add(module)
            parameters = tuple(by_module[module])
            if node.target is CONVOLUTION:
                geometry, unfilterable = convolution_geometry(node)
                layers.append(Layer(module, "conv", parameters, geometry, node in shortcuts, unfilterable))
            else:
                layers.append(Layer(module, "linear" if node.target in LINEAR else "other", parameters))
    return layers


def convolution_geometry(node: fx.Node) -> tuple[ConvGeometry | None, str | None]:
    """Geometry of an aten.convolution node, or why it cannot be filtered."""
    x, w, _, stride, padding, dilation, transposed, _, groups = node.args
    value: Any = x.meta["val"]
    weight: Any = w.meta["val"]
    if value.dim() != 4:
        return None, f"it is a {value.dim() - 2}-D convolution; gradient filtering is defined for 2-D"
    if transposed:
        return None, "it is a transposed convolution; gradient filtering is defined for ordinary ones"
    return ConvGeometry.of(value, weight, node.meta["val"], stride, padding, dilation, groups), None


def _placeholder_parameters(program: ExportedProgram) -> dict[str, str]:
    return dict(program.graph_signature.inputs_to_parameters)


def _parameters_read(node: fx.Node, owner: dict[str, str]) -> list[str]:
    """Parameters that the node reads, directly or through shape changes of the parameter alone."""
    if node.target in (aten.permute.default, aten.view.default, aten.t.default):
        return []
    found = []
    for arg in node.all_input_nodes:
        while arg.op == "call_function" and arg.target in (aten.permute.default, aten.view.default, aten.t.default):
            arg = arg.all_input_nodes[0]
        if arg.op == "placeholder" and arg.name in owner:
            found.append(owner[arg.name])
    return found


def _shortcut_convs(graph: fx.Graph) -> set[fx.Node]:
    """A projection: one convolution between a fork and an addition whose other operand took two or more from there."""
    shortcuts = set()
    for node in graph.nodes:
        if node.target is not aten.add.Tensor or len(node.all_input_nodes) != 2:
            continue
        left, right = node.all_input_nodes
        for branch, other in ((left, right), (right, left)):
            conv = _conv_above(branch)
            if conv is not None and _fewest_convs(other, conv) >= 2:
                shortcuts.add(conv)
    return shortcuts


def _conv_above(node: fx.Node) -> fx.Node | None:
    """The convolution that produced the value through normalisation alone."""
    while node.op == "call_function":
        if node.target is CONVOLUTION:
            return node
        if "_norm" not in str(node.target) and "getitem" not in str(node.target):
            return None
        node = node.all_input_nodes[0]
    return None


def _fewest_convs(start: fx.Node, conv: fx.Node) -> int:
    """Fewest convolutions on a way from `conv`'s fork to `start` past `conv`, no resampling between; 0 for no way."""
    forks = _values_above(conv)
    best: dict[fx.Node, int] = {start: 0}
    stack = [start]
    while stack:
        node = stack.pop()
        if (
            node in forks
            or node is conv
            or node.op != "call_function"
            or any(word in str(node.target) for word in RESAMPLERS)
        ):
            continue
        cost = best[node] + (node.target is CONVOLUTION)
        inputs = node.all_input_nodes[:1] if node.target is CONVOLUTION else node.all_input_nodes
        for arg in inputs:
            if cost < best.get(arg, 1 << 30):
                best[arg] = cost
                stack.append(arg)
    return min((best[fork] for fork in forks if fork in best), default=0)


def _values_above(conv: fx.Node) -> set[fx.Node]:
    """The convolution's input, and what it was pooled from (a projection behind an average pool forks above it)."""
    value = conv.all_input_nodes[0]
    found = {value}
    while value.op == "call_function" and "pool" in str(value.target):
        value = value.all_input_nodes[0]
        found.add(value)
    return found
