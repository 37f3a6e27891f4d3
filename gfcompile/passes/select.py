"""Mark the convolutions whose backward is to be filtered.

    convolution_backward(gy, x, w, ...)  ==>  gf.filtered_convolution_backward(gy, x, w, ..., r, reference)

Approximate: the filtered gradients of docs/method.md, section 1 (oracle: tests/oracles.py). A layer stays exact, with
its reason, where it is transposed or not 2-D, or where the published formulas are asked for and do not define it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import fx

from gfcompile.geometry.convolution import ConvGeometry, why_reference_refuses
from gfcompile.graph.inputs import Inputs
from gfcompile.graph.nodes import emit
from gfcompile.graph.ownership import layer_of
from gfcompile.ops import gf
from gfcompile.passes.base import Found, Pass, Site
from gfcompile.step import Refusal, Step

TRANSPOSED = 7  # the argument of convolution_backward that says so
BACKWARD = torch.ops.aten.convolution_backward.default


def backward_geometry(node: fx.Node) -> ConvGeometry:
    """Geometry of an aten.convolution_backward node."""
    gy, x, w, _, stride, padding, dilation, _, _, groups, _ = node.args
    return ConvGeometry.of(x.meta["val"], w.meta["val"], gy.meta["val"], stride, padding, dilation, groups)


@dataclass(frozen=True)
class Selected(Site):
    """A backward to be filtered in patches of r x r. The log names its weight."""

    r: int

    @property
    def label(self) -> str:
        return str(self.node.args[2])


@dataclass(frozen=True)
class Select(Pass[Selected]):
    """Choose by the plan, check the geometry, name what is refused."""

    name: ClassVar[str] = "select"

    def find(self, step: Step) -> Found[Selected]:
        for layer, reason in step.plan.refused:
            yield Refusal(layer, reason)
        already, inputs = {layer for layer, _ in step.plan.refused}, Inputs(step)
        for node in step.body.graph.nodes:
            if node.target is not BACKWARD or node.args[TRANSPOSED]:
                continue
            name = layer_of(step, node.args[2], inputs)
            r = step.plan.patch_of(name) if name else None
            if name is None or r is None or name in already:
                continue
            why = why_reference_refuses(backward_geometry(node), r) if step.plan.reference else None
            yield Refusal(name, why) if why else Selected(node, r)

    def rewrite(self, step: Step, site: Selected) -> None:
        gy, x, w, _, stride, padding, dilation, _, _, groups, _ = site.node.args
        graph = step.body.graph
        with graph.inserting_before(site.node):
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
                site.r,
                step.plan.reference,
            )
        site.node.replace_all_uses_with(marked)
        graph.erase_node(site.node)


def _pair(values: Any) -> list[int]:
    return [int(values[0]), int(values[-1])]
