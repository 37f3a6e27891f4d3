"""Let a frozen convolution absorb the frozen scale after it (an inference batch norm's).

    conv(x, w) * scale + shift   ==>   conv(x, w*scale) + shift

Exact up to float rounding. Leaves convolutions that are trained, shared, biased or transposed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import fx

from gfcompile.graph.frozen import frozen_nodes
from gfcompile.graph.nodes import emit
from gfcompile.graph.shapes import shape_of
from gfcompile.passes.base import Found, Pass, Site
from gfcompile.step import Step

aten = torch.ops.aten


@dataclass(frozen=True)
class FoldBatchnorm(Pass[Site]):
    """Sites are the multiplications by a scale."""

    name: ClassVar[str] = "fold_batchnorm"

    def find(self, step: Step) -> Found[Site]:
        frozen = frozen_nodes(step)
        for node in step.body.graph.nodes:
            if node.target is aten.mul.Tensor and _is_absorbable(node, frozen):
                yield Site(node)

    def rewrite(self, step: Step, site: Site) -> None:
        conv, scale = site.node.args
        graph = step.body.graph
        with graph.inserting_before(site.node):
            per_output = emit(graph, aten.reshape.default, scale, [-1] + [1] * (len(shape_of(conv.args[1])) - 1))
            weight = emit(graph, aten.mul.Tensor, conv.args[1], per_output)
            scaled = emit(graph, aten.convolution.default, conv.args[0], weight, *conv.args[2:])
        site.node.replace_all_uses_with(scaled)
        graph.erase_node(site.node)
        graph.erase_node(conv)


def _is_absorbable(node: fx.Node, frozen: set[fx.Node]) -> bool:
    conv, scale = node.args
    if not (isinstance(conv, fx.Node) and isinstance(scale, fx.Node)) or conv.target is not aten.convolution.default:
        return False
    weight, bias, transposed = conv.args[1], conv.args[2], conv.args[6]
    fits = shape_of(scale) == (1, shape_of(conv)[1]) + (1,) * (len(shape_of(conv)) - 2)
    return bool(
        len(conv.users) == 1 and bias is None and not transposed and fits and weight in frozen and scale in frozen
    )
