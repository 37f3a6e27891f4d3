"""Read a forward graph: its layers in order of execution, their geometry, and which are residual projections."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.export.graph_signature import OutputKind

from gfcompile.frontend.differentiate import CoreProgram
from gfcompile.geometry.convolution import ConvGeometry
from gfcompile.graph.ownership import find_weights, module_of, parameters_of
from gfcompile.graph.walks import nodes_above
from gfcompile.plan import Layer

aten = torch.ops.aten
CONVOLUTION = aten.convolution.default
LINEAR = {aten.addmm.default, aten.mm.default, aten.linear.default, aten.bmm.default, aten.matmul.default}
AFFINE = {aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor}
RESAMPLERS = ("axis_map", "index")


def shared_names(module: nn.Module) -> dict[str, str]:
    """Further names of tensors that the model uses under several, each with the one that the traced graph uses."""
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    last = {tensor: name for name, tensor in named}
    return {name: last[tensor] for name, tensor in named if last[tensor] != name}


def survey(program: CoreProgram, module: nn.Module, read_output: int | None = None) -> list[Layer]:
    """Layers of the module's decomposed forward program; `read_output` says which of its outputs the loss reads."""
    reader = _Reader(program)
    used = _used_nodes(program, read_output)
    shared = shared_names(module)
    by_module: dict[str, list[str]] = {}
    for name, _ in module.named_parameters(remove_duplicate=False):
        by_module.setdefault(module_of(name), []).append(shared.get(name, name))
    tensors = dict(module.named_parameters(remove_duplicate=False))
    kernels = reader.kernels_by_module(program.graph)
    shortcuts = _shortcut_convs(program.graph)
    layers: dict[str, Layer] = {}
    for node in program.graph.nodes:
        for parameter in reader.parameters_read(node):
            name = module_of(parameter)
            if name in layers and (node not in used or not layers[name].idle):
                continue
            idle = node not in used
            parameters = tuple(by_module[name])
            own = kernels.get(name, [])
            weights = sum(tensors[kernel].numel() for kernel in own)
            if node.target is CONVOLUTION and parameter in reader.kernel_and_bias(node):
                kernel = reader.kernel_of(node)
                rank = tensors[kernel or parameter].dim()
                geometry, unfilterable = convolution_geometry(node, rank)
                layers[name] = Layer(
                    name,
                    "conv",
                    parameters,
                    geometry,
                    node in shortcuts,
                    unfilterable,
                    idle,
                    why_undrawable(node, rank, kernel, own),
                    kernel,
                    weights,
                )
            else:
                kind = "linear" if node.target in LINEAR else "other"
                layers[name] = Layer(name, kind, parameters, idle=idle, weights=weights)
    return list(layers.values())


def convolution_geometry(node: fx.Node, rank: int) -> tuple[ConvGeometry | None, str | None]:
    """Geometry of an aten.convolution node whose weight has `rank` axes in the model, or why it cannot be filtered."""
    x, w, _, stride, padding, dilation, transposed, _, groups = node.args
    value: Any = x.meta["val"]
    weight: Any = w.meta["val"]
    if rank in (3, 5) or value.dim() != 4:
        axes = rank - 2 if rank in (3, 5) else value.dim() - 2
        return None, f"it is a {axes}-D convolution; gradient filtering is defined for 2-D"
    if transposed:
        return None, "it is a transposed convolution; gradient filtering is defined for ordinary ones"
    return ConvGeometry.of(value, weight, node.meta["val"], stride, padding, dilation, groups), None


def why_undrawable(node: fx.Node, rank: int, kernel: str | None, own: Sequence[str]) -> str | None:
    """Why single input channels of an aten.convolution node cannot be updated, or None.

    `kernel` is the parameter that it reads, of `rank` axes in the model; `own` are all kernels of the layer's module.
    """
    _, w, *_, transposed, _, _ = node.args
    if rank in (3, 5) or transposed:
        kind = "transposed" if transposed else f"{rank - 2}-D"
        return f"it is a {kind} convolution; channels are drawn of ordinary 2-D ones"
    if kernel is not None and w.op != "placeholder":
        return "its kernel is computed from parameters: their gradients reach all channels"
    if len(w.users) > 1:
        return "its kernel is read in several places, each with an input of its own"
    if len(own) > 1:
        return "its module has several kernels, each with an input of its own"
    if kernel not in own:
        return "its kernel is no parameter of its own module"
    return None


def _used_nodes(program: CoreProgram, read_output: int | None) -> set[fx.Node]:
    """What the output in question depends on, or any output if none is."""
    specs = program.signature.output_specs
    results = program.graph.output_node().args[0]
    outputs = [node for spec, node in zip(specs, results, strict=True) if spec.kind is OutputKind.USER_OUTPUT]
    read = outputs if read_output is None else [outputs[read_output]]
    return set(nodes_above(node for node in read if isinstance(node, fx.Node)))


class _Reader:
    """Knows which parameters a node reads, directly or as weights computed from them."""

    def __init__(self, program: CoreProgram) -> None:
        signature = program.signature
        self.owner = dict(signature.inputs_to_parameters)
        inputs = set(signature.user_inputs)
        constants = [node for node in program.graph.nodes if node.op == "placeholder" and node.name not in inputs]
        self.weights = find_weights(program.graph, constants)

    def kernel_of(self, conv: fx.Node) -> str | None:
        """The parameter that a convolution's kernel is, or is computed from; None for any other tensor."""
        is_weight = conv.args[1] in self.weights or conv.args[1].name in self.owner
        return next(iter(self._parameters_of(conv.args[1])), None) if is_weight else None

    def kernels_by_module(self, graph: fx.Graph) -> dict[str, list[str]]:
        """The parameters that convolutions read as kernels, each once."""
        found: dict[str, list[str]] = {}
        kernels = (self.kernel_of(node) for node in graph.nodes if node.target is CONVOLUTION)
        for kernel in dict.fromkeys(kernel for kernel in kernels if kernel is not None):
            found.setdefault(module_of(kernel), []).append(kernel)
        return found

    def kernel_and_bias(self, conv: fx.Node) -> list[str]:
        """Of what a convolution reads, the kernel itself and the bias; other parameters may scale the kernel."""
        kernel = self.kernel_of(conv)
        bias = self._parameters_of(conv.args[2]) if conv.args[2] is not None else []
        return bias if kernel is None else [kernel, *bias]

    def parameters_read(self, node: fx.Node) -> list[str]:
        if node.op != "call_function" or node in self.weights:
            return []
        found: list[str] = []
        for arg in node.all_input_nodes:
            if arg in self.weights or arg.name in self.owner:
                found += self._parameters_of(arg)
        return found

    def _parameters_of(self, weight: fx.Node) -> list[str]:
        return parameters_of(weight, lambda placeholder: self.owner.get(placeholder.name))


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
    """The convolution that produced the value through normalisation alone: scaled and shifted by smaller tensors."""
    while node.op == "call_function" and node.target is not CONVOLUTION:
        if "_norm" in str(node.target) or node.target in (operator.getitem, aten.view.default, aten.reshape.default):
            node = node.all_input_nodes[0]
            continue
        if node.target not in AFFINE:
            return None
        size = node.meta["val"].numel()
        whole = [arg for arg in node.all_input_nodes if arg.meta["val"].numel() == size]
        if len(whole) != 1:
            return None
        node = whole[0]
    return node if node.op == "call_function" else None


def _fewest_convs(start: fx.Node, conv: fx.Node) -> int:
    """Fewest convolutions on a way from `conv`'s fork to `start` past `conv`, no resampling between; 0 for no way."""
    forks = _values_above(conv)
    first = min(forks)  # in the graph's order: no way leads from what lies above it
    waiting = deque([(0, start)])  # the fewest convolutions first, so that every node is left once
    seen: set[fx.Node] = set()
    while waiting:
        fewest, node = waiting.popleft()
        if node in forks:
            return fewest
        if (
            node in seen
            or node < first
            or node is conv
            or node.op != "call_function"
            or any(word in str(node.target) for word in RESAMPLERS)
        ):
            continue
        seen.add(node)
        if node.target is CONVOLUTION:
            waiting.append((fewest + 1, node.all_input_nodes[0]))
        else:
            waiting.extendleft((fewest, arg) for arg in node.all_input_nodes)
    return 0


def _values_above(conv: fx.Node) -> set[fx.Node]:
    """The convolution's input, and what it was pooled from (a projection after an average pool forks above it)."""
    value = conv.all_input_nodes[0]
    found = {value}
    while value.op == "call_function" and "pool" in str(value.target):
        value = value.all_input_nodes[0]
        found.add(value)
    return found
