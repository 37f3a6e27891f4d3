"""Compute the weight gradients of drawn input channels only (docs/method.md, section 5).

    gw = gf.channel_mix_weight(g, gf.patch_sum(x))
      ==>  gw = gf.spread_weights(gf.channel_mix_weight(g, gf.patch_sum(gf.take_channels(x, c))), c)
    gx, gw, gb = convolution_backward(gy, x, w, [True, True, True])
      ==>  gx, _, gb = convolution_backward(gy, x, w, [True, False, True])
           gw = gf.spread_weights(convolution_backward(gy, gf.take_channels(x, c), ..., [False, True, False])[1], c)

Exact for the drawn channels, zero for the others. The channels `c` are a new input of the step, one a layer, so every
draw runs the same program. The gradients of the layer's input and bias stay as they are. Where whole groups are drawn
(a depthwise layer), the gradient of the output is taken likewise.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import fx

from gfcompile.errors import ContractError
from gfcompile.geometry.channel_draws import Draw
from gfcompile.graph.inputs import Inputs
from gfcompile.graph.nodes import emit, results_of
from gfcompile.graph.shapes import shape_of
from gfcompile.ops import gf
from gfcompile.passes.base import Found, Pass, Site
from gfcompile.passes.select import BACKWARD
from gfcompile.step import Role, Step, Value

aten = torch.ops.aten
MIX = gf.channel_mix_weight.default


@dataclass(frozen=True)
class Drawn(Site):
    """The gradient of a layer's kernel, of whose input channels so many are drawn."""

    layer: str
    kernel: str
    channels: int
    inputs: Inputs = field(repr=False)


@dataclass(frozen=True)
class DrawChannels(Pass[Drawn]):
    """Sites are the weight gradients of the layers that the plan updates sparsely."""

    name: ClassVar[str] = "draw_channels"

    def find(self, step: Step) -> Found[Drawn]:
        layers, inputs = {layer.kernel: layer for layer in step.plan.sparse}, Inputs(step)
        for value, node in zip(step.outputs, step.results(), strict=True):
            layer = layers.get(value.name) if value.role is Role.GRADIENT else None
            if layer is not None and node.target is not gf.spread_weights.default:
                assert layer.channels is not None
                yield Drawn(node, layer.name, value.name, layer.channels, inputs)

    def rewrite(self, step: Step, site: Drawn) -> None:
        graph, node = step.body.graph, site.node
        channels = site.inputs.get(Value(Role.CHANNELS, site.layer), (site.channels,), torch.int32)
        weight, shape = site.inputs.node_of(Value(Role.PARAMETER, site.kernel)), list(shape_of(node))
        mix = node.args[0] if node.target is aten.expand.default else node
        source = node.args[0]
        with graph.inserting_before(node):
            if mix.target is MIX:
                groups = mix.args[2]
                drawn = _drawn_mix(graph, mix, channels, Draw.of(shape, groups, site.channels), shape)
            elif node.target is operator.getitem and source.target is BACKWARD:
                groups = source.args[-2]
                drawn = _drawn_backward(graph, source, channels, weight, groups)
            else:
                raise ContractError(
                    f"draw_channels: the gradient of '{site.kernel}' is no convolution's: {node.target}"
                )
            whole = emit(graph, gf.spread_weights.default, drawn, channels, shape, groups)
        node.replace_all_uses_with(whole)
        graph.erase_node(node)
        if source.target is BACKWARD:
            _forget_weight_gradient(source)


def _drawn_mix(graph: fx.Graph, mix: fx.Node, channels: fx.Node, draw: Draw, shape: list[int]) -> fx.Node:
    g, x_tilde, _, kernel = mix.args
    taken = _take(graph, x_tilde, channels)
    if draw.takes_groups:
        g = emit(graph, gf.take_channels.default, g, channels, draw.group_inputs, draw.group_outputs)
    drawn, wanted = emit(graph, MIX, g, taken, draw.drawn_groups, kernel), draw.drawn_shape(shape)
    return drawn if list(shape_of(drawn)) == wanted else emit(graph, aten.expand.default, drawn, wanted)


def _take(graph: fx.Graph, value: fx.Node, channels: fx.Node) -> fx.Node:
    """The drawn channels of x_tilde: those of x, summed."""
    passed = []
    while value.target in (aten.mul.Scalar, gf.patch_sum.default):
        passed.append(value)
        value = value.args[0]
    taken = emit(graph, gf.take_channels.default, value, channels, 1, 1)
    for each in reversed(passed):
        taken = emit(graph, each.target, taken, *each.args[1:])
    return taken


def _drawn_backward(graph: fx.Graph, backward: fx.Node, channels: fx.Node, weight: fx.Node, groups: int) -> fx.Node:
    gy, x, _, bias, *geometry, _, _ = backward.args
    shape = list(shape_of(weight))
    draw = Draw.of(shape, groups, shape_of(channels)[0])
    taken = emit(graph, gf.take_channels.default, x, channels, 1, 1)
    if draw.takes_groups:
        gy = emit(graph, gf.take_channels.default, gy, channels, draw.group_inputs, draw.group_outputs)
    weights = emit(graph, gf.take_weights.default, weight, channels, shape, groups)  # asked for its shape only
    operands = (gy, taken, weights, bias, *geometry, draw.drawn_groups, [False, True, False])
    return emit(graph, operator.getitem, emit(graph, BACKWARD, *operands), 1)


def _forget_weight_gradient(backward: fx.Node) -> None:
    """What is left of a backward whose weight gradient is computed elsewhere."""
    if not results_of(backward):
        backward.graph.erase_node(backward)
        return
    gx, _, gb = backward.args[-1]
    backward.args = (*backward.args[:-1], [gx, False, gb])
