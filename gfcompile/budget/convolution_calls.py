"""The convolutions of a traced step, call by call: whose kernel each reads, and what it counts.

Read off the graph and not off the survey: a layer that is called twice counts twice, and convolutions of one and three
dimensions and transposed ones count like any other.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gfcompile.geometry.convolution import ConvGeometry
from gfcompile.graph.multiply_adds import multiply_adds
from gfcompile.graph.ownership import layer_of
from gfcompile.report.counts import exact_flops, filtered_flops
from gfcompile.step import Step

CONVOLUTION = torch.ops.aten.convolution.default
NO_LAYER = ""  # whose kernel is computed from the batch


@dataclass(frozen=True)
class Call:
    """`flops` are those of the forward pass, of g_x and of g_w: each the same. `geometry` is None for a transposed
    convolution, which is never filtered and of which no channels are drawn; `place` is its rank among all calls."""

    place: int
    flops: int
    geometry: ConvGeometry | None

    def added(self, r: int | None, hands_back: bool, channels: int | None) -> int:
        """What training adds to the forward pass, filtered with r or exact."""
        if self.geometry is None:
            return self.flops * (1 + hands_back)
        if r is None:
            flops = exact_flops(self.geometry, hands_back, channels)
        else:
            flops = filtered_flops(self.geometry, r, False, hands_back, channels)
        return flops.total - flops.forward


def calls_by_layer(step: Step) -> dict[str, list[Call]]:
    """By the layer that owns the kernel."""
    found: dict[str, list[Call]] = {}
    for place, node in enumerate(step.body.graph.find_nodes(op="call_function", target=CONVOLUTION)):
        x, w, _, stride, padding, dilation, transposed, _, groups = node.args
        geometry = None
        if not transposed:
            shapes = (x.meta["val"], w.meta["val"], node.meta["val"])
            geometry = ConvGeometry.of(*shapes, stride, padding, dilation, groups)
        call = Call(place, 2 * multiply_adds(node), geometry)
        found.setdefault(layer_of(step, w) or NO_LAYER, []).append(call)
    return found
