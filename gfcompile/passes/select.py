"""Mark the convolutions whose backward is to be filtered.

    convolution_backward(gy, x, w, ...)  ==>  gf.filtered_convolution_backward(gy, x, w, ..., r, reference)

Approximate: the filtered gradients of METHOD section 1 (oracle: tests/oracles.py). A layer stays exact, with its
reason, where it is transposed or not 2-D, or where the published formulas are asked for and do not define it.
"""

from __future__ import annotations

import operator
from typing import Any, ClassVar

import torch
from torch import fx

from gfcompile.geometry import ConvGeometry, why_reference_refuses
from gfcompile.ops import gf
from gfcompile.passes.base import Found, Pass, emit
from gfcompile.step import STATE, Refusal, Role, Step
from gfcompile.walks import nodes_above
from gfcompile.weights import module_of, parameters_of

TRANSPOSED = 7  # the argument of convolution_backward that says so
BACKWARD = torch.ops.aten.convolution_backward.default


def layer_of(step: Step, weight: Any) -> str | None:
    """The module whose weight the node is, or is computed from; None for what depends on the input."""
    if not isinstance(weight, fx.Node):
        return None
    if weight.target is gf.take_weights.default:
        weight = weight.args[0]
    values = dict(zip(step.placeholders(), step.inputs, strict=True))
    doors = [values[node] for node in nodes_above([weight]) if node.op == "placeholder"]
    if any(value.role not in STATE and value.role is not Role.CONSTANT for value in doors):
        return None
    names = parameters_of(weight, lambda node: values[node].name if values[node].role is Role.PARAMETER else None)
    return module_of(names[0]) if names else None


def backward_geometry(node: fx.Node) -> ConvGeometry:
    """Geometry of an aten.convolution_backward node."""
    gy, x, w, _, stride, padding, dilation, _, _, groups, _ = node.args
    return ConvGeometry.of(x.meta["val"], w.meta["val"], gy.meta["val"], stride, padding, dilation, groups)


class Select(Pass):
    """Choose by the plan, check the geometry, name what is refused."""

    name: ClassVar[str] = "select"

    def find(self, step: Step) -> Found:
        for layer, reason in step.plan.refused:
            yield Refusal(layer, reason)
        already = {layer for layer, _ in step.plan.refused}
        for node in step.body.graph.nodes:
            if node.target is not BACKWARD or node.args[TRANSPOSED]:
                continue
            name = layer_of(step, node.args[2])
            r = step.plan.patch_of(name) if name else None
            if name is None or r is None or name in already:
                continue
            why = why_reference_refuses(backward_geometry(node), r) if step.plan.reference else None
            yield Refusal(name, why) if why else node

    def describe(self, site: fx.Node) -> str:
        return str(site.args[2])

    def rewrite(self, step: Step, site: fx.Node) -> None:
        gy, x, w, _, stride, padding, dilation, _, _, groups, _ = site.args
        r = step.plan.patch_of(layer_of(step, w) or "")
        graph = step.body.graph
        with graph.inserting_before(site):
            marked = emit(
                graph,
                gf.filtered_convolution_backward.default,
                gy,
                x,
                w,
                _pair(stride),
                _pair(padding),
                _pair(dilation),
                groups,
                r,
                step.plan.reference,
            )
        site.replace_all_uses_with(marked)
        graph.erase_node(site)


def _pair(values: Any) -> list[int]:
    return [int(values[0]), int(values[-1])]


def results_of(node: fx.Node) -> dict[int, fx.Node]:
    """The getitem users of a node with several results, by index."""
    return {int(user.args[1]): user for user in node.users if user.target is operator.getitem}
