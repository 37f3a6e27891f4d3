"""What training a layer is worth, and what filtering leaves of it.

With a batch, *measured*: a layer is worth the squared norm of its exact weight gradient, which is how much a small step
along it lowers the loss; filtered, the cosine with the exact one is left of that (a step of the same length). Without,
*estimated*: every layer is worth the same, and a mean over n values leaves sqrt(d + (1 - d)/n), where d is the part of
the kernel's energy that is DC beside its largest other component (equation 13): what it keeps of a gradient of which
that part is smooth and the rest is white noise. Filtering takes two means: over the r^2 pixels of a patch, and over the
taps of the kernel, which all get one gradient. Drawing a share of the channels leaves that share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from gfcompile.errors import UserError
from gfcompile.noise.measure import Measured
from gfcompile.noise.spectrum import kernel_energy

POINTS = 10**6  # the score of training every layer exactly; whole numbers, so that sums have no rounding
TYPICAL_RATIO = 1.462  # of 1x1 kernels, which have no other component: the paper's Table 5, ResNets


@dataclass(frozen=True)
class Scores:
    """`worth` sums to 1; `left[layer][r]` is what filtering leaves."""

    worth: Mapping[str, float]
    left: Mapping[str, Mapping[int, float]]
    is_measured: bool

    def of(self, layer: str, r: int | None) -> float:
        """Its part of the score, trained exactly (None) or filtered."""
        return self.worth[layer] * (1.0 if r is None else self.left[layer].get(r, 1.0))


def measured_scores(measured: Measured, chosen: Sequence[str]) -> Scores:
    """From what `gfcompile quality` measures."""
    norms = measured.gw_squared
    total = sum(norms.get(name, 0.0) for name in chosen)
    if not total:
        raise UserError(
            "plan: no gradient reaches these convolutions on this batch, so nothing tells plans apart; give another"
            " batch, or none: layers are then worth the same"
        )
    left = {
        layer.layer: {r: max(0.0, noise.gw.cosine or 0.0) for r, noise in layer.alone.items()}
        for layer in measured.layers
    }
    return Scores(
        {name: norms.get(name, 0.0) / total for name in chosen}, {name: left.get(name, {}) for name in chosen}, True
    )


def estimated_scores(module: nn.Module, chosen: Sequence[str], edges: Sequence[int]) -> Scores:
    """From the weights alone."""
    left = {}
    for name in chosen:
        weight = getattr(module.get_submodule(name), "weight", None)
        if isinstance(weight, Tensor) and not weight.isfinite().all():
            raise UserError(f"plan: '{name}.weight' holds NaN or infinity; load other weights")
        smooth = _smooth_part(weight)
        taps = weight[0, 0].numel() if isinstance(weight, Tensor) and weight.dim() > 2 else 1
        left[name] = {r: _mean_leaves(smooth, r**2) * _mean_leaves(smooth, taps) for r in edges}
    return Scores(dict.fromkeys(chosen, 1.0 / max(len(chosen), 1)), left, False)


def _mean_leaves(smooth: float, count: int) -> float:
    return math.sqrt(smooth + (1.0 - smooth) / count)


def _smooth_part(weight: object) -> float:
    """DC energy beside the largest other component; typical where a kernel has one tap, or none can be read."""
    if not isinstance(weight, Tensor) or weight.dim() != 4 or weight.shape[2:].numel() == 1:
        return TYPICAL_RATIO / (1.0 + TYPICAL_RATIO)
    ratio = kernel_energy(weight).ratio
    return 1.0 if ratio is None else ratio / (1.0 + ratio)
