"""What a sparse step updates: the share of all convolution weights, counted from the plan."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from gfcompile.geometry.channel_draws import Draw
from gfcompile.plan import Layer, Plan
from gfcompile.report.schema import Sparse
from gfcompile.step import Refusal

WHEN = {
    "step": "drawn anew every step",
    "epoch": "drawn anew every epoch",
    "fixed": "drawn once",
    "norm": "those with the largest weights",
}


def make_sparse(layers: Sequence[Layer], plan: Plan) -> Sparse | None:
    """None where every trained layer is updated whole. Convolutions that are trained whole count with all weights."""
    if not plan.sparse and not plan.undrawn:
        return None
    channels = {layer.name: layer.channels for layer in plan.trained}
    total = sum(layer.weights for layer in layers)
    updated = sum(_updated(layer, channels[layer.name]) for layer in layers if layer.name in channels)
    return Sparse(
        strategy=plan.sparse_strategy,
        layers=len(plan.sparse),
        updated_weights=updated,
        convolution_weights=total,
        share=round(updated / total, 6) if total else 0.0,
        undrawn=tuple(Refusal(layer, reason) for layer, reason in plan.undrawn),
    )


def sparse_lines(sparse: Sparse) -> list[str]:
    """The share in words, and the layers that are updated whole although channels were to be drawn."""
    head = (
        f"sparse: {sparse.layers} layers, channels {WHEN[sparse.strategy]}; a step updates {sparse.updated_weights} of"
        f" {sparse.convolution_weights} convolution weights, {100 * sparse.share:.2f} %, counted"
    )
    return [head, *(f"  {row.layer} is updated whole: {row.reason}" for row in sparse.undrawn)]


def _updated(layer: Layer, channels: int | None) -> int:
    geometry = layer.geometry
    if channels is None or geometry is None:
        return layer.weights
    shape = [geometry.out_channels, geometry.in_channels // geometry.groups, *geometry.kernel]
    return prod(Draw.of_layer(geometry, channels).drawn_shape(shape))
