"""Lay images out as [N, H, W, C] and trained convolution weights as their kernels read them.

    convolution(x, w)          ==>  gf.conv2d_nhwc(x', w')           x' = x with channels last, w' = w packed
    relu(x), add(x, y), ...    ==>  the same on x', y'
    anything else              ==>  itself, after a transposition back

Exact: values move, none changes. Layouts spread forward from the operators that want them; a transposition is written
only where two layouts meet, so an operator that this pass does not know costs time and never correctness.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import fx

from gfcompile.geometry.layouts import WeightLayout
from gfcompile.graph.nodes import emit
from gfcompile.graph.shapes import fake_like, shape_of
from gfcompile.ops import gf
from gfcompile.passes.base import Found, Pass, Site
from gfcompile.passes.image_ops import IMAGE_OPS
from gfcompile.step import STATE, Body, Role, Step

aten = torch.ops.aten
TO_LAST, TO_FIRST = [0, 2, 3, 1], [0, 3, 1, 2]
CONVOLUTIONS = {aten.convolution.default: 1, gf.channel_mix.default: 1, aten.convolution_backward.default: 2}


@dataclass(frozen=True)
class Weight(Site):
    """A trained convolution weight and how it is to lie in memory. The log names the parameter."""

    parameter: str
    layout: WeightLayout

    @property
    def label(self) -> str:
        return self.parameter


@dataclass(frozen=True)
class ChannelsLast(Pass[Weight]):
    """Rebuilds the graph; not site by site, since a layout is a property of the whole."""

    name: ClassVar[str] = "channels_last"

    def find(self, step: Step) -> Found[Weight]:
        for name, weight in sorted(_trained_conv_weights(step).items()):
            if name not in step.layouts:
                yield weight

    def rewrite_all(self, step: Step, sites: list[Weight]) -> None:
        step.body = Relayout(step, {site.parameter: site.layout for site in sites}).build()


class Relayout:
    """Old nodes to their new forms: as traced (`plain`), with channels last (`image`), or packed (`packed`)."""

    def __init__(self, step: Step, weights: Mapping[str, WeightLayout]) -> None:
        self.step, self.weights = step, weights
        self.graph = fx.Graph()
        self.stack_trace: str | None = None  # of the node that is being rewritten: where the user wrote it
        self.plain: dict[fx.Node, Any] = {}
        self.image: dict[fx.Node, fx.Node] = {}
        self.taps: dict[fx.Node, fx.Node] = {}  # of max pools: the indices that only their backward pass reads
        self.packed: dict[fx.Node, tuple[fx.Node, WeightLayout]] = {}

    def build(self) -> Body:
        """The graph again, every node in its layout."""
        for node, value in zip(self.step.placeholders(), self.step.inputs, strict=True):
            layout = self.weights.get(value.parameter) if value.role in STATE else None
            new = self.graph.placeholder(node.name)
            new.meta["val"] = node.meta["val"]
            if layout is None:
                self.plain[node] = new
            else:
                new.meta["val"] = fake_like(self.step.body.graph, layout.physical_shape, torch.float32)
                self.packed[node] = (new, layout)
                self.step.layouts[value.parameter] = layout
        for node in self.step.body.graph.nodes:
            if node.op == "call_function":
                self._rewrite(node)
        results = []
        for node, value in zip(self.step.results(), self.step.outputs, strict=True):
            is_like_weight = value.role in STATE or value.role is Role.GRADIENT
            layout = self.weights.get(value.parameter) if is_like_weight else None
            results.append(self.as_packed(node, layout) if layout else self.as_plain(node))
        self.graph.output(tuple(results))
        return Body(torch.nn.Module(), self.graph)

    def emit(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """A call in the new graph, with its shape, and the line of the model that it comes from."""
        node = emit(self.graph, target, *args, **kwargs)
        node.meta["stack_trace"] = self.stack_trace
        return node

    def as_plain(self, node: fx.Node) -> Any:
        """The value in the layout PyTorch traced."""
        if node not in self.plain:
            if node in self.image:
                self.plain[node] = self._transposed(self.image[node], TO_FIRST)
            else:
                packed, layout = self.packed[node]
                unrolled = self.emit(aten.permute.default, packed, list(layout.inverse_order))
                self.plain[node] = self.emit(aten.reshape.default, unrolled, list(layout.logical_shape))
        return self.plain[node]

    def as_image(self, node: fx.Node) -> fx.Node:
        """A 4-D value with channels last; lower ranks gain the leading ones that broadcasting implies."""
        if node not in self.image:
            plain = self.as_plain(node)
            rank = len(shape_of(plain))
            if rank < 4:
                plain = self.emit(aten.reshape.default, plain, [1] * (4 - rank) + list(shape_of(plain)))
            self.image[node] = self._transposed(plain, TO_LAST)
        return self.image[node]

    def as_packed(self, node: fx.Node, layout: WeightLayout) -> fx.Node:
        """A convolution weight, or its gradient, in the kernel's order."""
        if node in self.packed and self.packed[node][1] == layout:
            return self.packed[node][0]
        split = self.emit(aten.reshape.default, self.as_plain(node), list(layout.split_shape))
        packed = self._contiguous(self.emit(aten.permute.default, split, list(layout.order)))
        self.packed.setdefault(node, (packed, layout))
        return packed

    def _transposed(self, value: fx.Node, order: list[int]) -> fx.Node:
        shape = shape_of(value)
        moved = [shape[axis] for axis in order]
        spatial = shape[1:3] if order == TO_FIRST else shape[2:4]
        if spatial == (1, 1) or shape[3 if order == TO_FIRST else 1] == 1:
            return self.emit(aten.reshape.default, value, moved)
        return self._contiguous(self.emit(aten.permute.default, value, order))

    def _contiguous(self, value: fx.Node) -> fx.Node:
        return self.emit(aten.clone.default, value, memory_format=torch.contiguous_format)

    def _rewrite(self, node: fx.Node) -> None:
        self.stack_trace = node.meta.get("stack_trace")
        handler: Callable[[Relayout, fx.Node], bool] | None = IMAGE_OPS.get(node.target)
        if handler is not None and handler(self, node):
            return
        if _is_pointwise(node) and self._pointwise(node):
            return
        args, kwargs = fx.map_arg((node.args, node.kwargs), self.as_plain)
        self.plain[node] = self.emit(node.target, *args, **kwargs)

    def _pointwise(self, node: fx.Node) -> bool:
        tensors = node.all_input_nodes
        packed = [self.packed[arg] for arg in tensors if arg in self.packed and arg not in self.plain]
        if packed and all(shape_of(arg) in ((), packed[0][1].logical_shape) for arg in tensors):
            layout = packed[0][1]

            def pick(arg: fx.Node) -> Any:
                return self.as_packed(arg, layout) if shape_of(arg) else self.as_plain(arg)

            args, kwargs = fx.map_arg((node.args, node.kwargs), pick)
            self.packed[node] = (self.emit(node.target, *args, **kwargs), layout)
            return True
        images = [arg for arg in tensors if arg in self.image and len(shape_of(arg)) == 4]
        if not images or not isinstance(node.meta["val"], torch.Tensor) or len(shape_of(node)) != 4:
            return False

        def image_or_scalar(arg: fx.Node) -> Any:
            return self.as_image(arg) if shape_of(arg) else self.as_plain(arg)

        args, kwargs = fx.map_arg((node.args, node.kwargs), image_or_scalar)
        self.image[node] = self.emit(node.target, *args, **kwargs)
        return True


def _is_pointwise(node: fx.Node) -> bool:
    return node.target in IMAGE_POINTWISE or torch.Tag.pointwise in getattr(node.target, "tags", ())


IMAGE_POINTWISE = {aten._to_copy.default, aten.full_like.default, aten.zeros_like.default, aten.ones_like.default}


def _trained_conv_weights(step: Step) -> dict[str, Weight]:
    """Packed layouts of the trained convolution weights; a weight that two geometries share stays plain."""
    names = dict(zip(step.placeholders(), step.inputs, strict=True))
    found: dict[str, set[Weight]] = {}
    for node in step.body.graph.nodes:
        position = CONVOLUTIONS.get(node.target)
        if position is None:
            continue
        weight = node.args[position]
        value = names.get(weight)
        if value is None or value.role is not Role.PARAMETER or step.is_frozen(value):
            continue
        if len(shape_of(weight)) == 4:
            groups = node.args[2] if node.target is gf.channel_mix.default else node.args[-1 if position == 1 else -2]
            layout = WeightLayout.for_conv(list(shape_of(weight)), groups)
            found.setdefault(value.name, set()).add(Weight(weight, value.name, layout))
    return {name: next(iter(weights)) for name, weights in found.items() if len(weights) == 1}
