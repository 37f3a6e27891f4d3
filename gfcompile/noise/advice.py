"""From measured noise to words: which r each layer can bear, and which layers to leave exact.

A layer bears r if its weight gradient, filtered alone, has a cosine of LEAST_COSINE or more with the exact one: a step
along it then keeps that part of the progress of an exact step of the same length. What the noise of later layers
does to a layer is no fault of its own r, so it is a warning, with the layer that hands back most of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gfcompile.noise.measure import LayerNoise, Measured
from gfcompile.noise.similarity import CEILING_DB
from gfcompile.settings.planning import LEAST_COSINE

GROWS_DB = 1.0  # less than this may be the border's doing


@dataclass(frozen=True)
class Advice:
    """`r` is the largest patch edge of those measured that the layer bears; None: leave it exact."""

    layer: str
    r: int | None
    words: str


def advise(measured: Measured, least_cosine: float = LEAST_COSINE) -> list[Advice]:
    """One for each measured layer, in order of execution."""
    layers = measured.layers
    return [_advise(layer, layers[index + 1 :], least_cosine) for index, layer in enumerate(layers)]


def _advise(layer: LayerNoise, behind: Sequence[LayerNoise], least: float) -> Advice:
    cosines = {r: noise.gw.cosine for r, noise in layer.alone.items() if noise.gw.cosine is not None}
    if not cosines:
        return Advice(layer.layer, None, "no gradient reaches it on this batch: nothing can be said")
    r = max((edge for edge, cosine in cosines.items() if cosine >= least), default=None)
    if r is None:
        words = f"leave it exact: filtered, its weight gradient has a cosine of {max(cosines.values()):.2f} at best"
        return Advice(layer.layer, None, "; ".join([words, *_assumption(layer)]))
    words = f"bears r={r} (cosine {cosines[r]:.2f})"
    larger = [edge for edge in cosines if edge > r]
    if larger:
        words += f", not r={larger[0]} ({cosines[larger[0]]:.2f})"
    return Advice(
        layer.layer, r, "; ".join([words, *_assumption(layer), *_growth(layer, r), *_drowned(layer, behind, r, least)])
    )


def _assumption(layer: LayerNoise) -> list[str]:
    if layer.energy.holds:
        return []
    return [f"violates the assumption of Proposition 1: DC energy ratio {layer.energy.ratio:.2f}, below 1"]


def _growth(layer: LayerNoise, r: int) -> list[str]:
    gain = gain_db(layer, r)
    return [f"noise grows by {-gain:.1f} dB on the way through it"] if gain is not None and gain < -GROWS_DB else []


def _drowned(layer: LayerNoise, behind: Sequence[LayerNoise], r: int, least: float) -> list[str]:
    """A warning if the noise of later layers leaves too little."""
    cosine = layer.together[r].gw.cosine
    handed = {each.layer: noise.cosine for each in behind if (noise := each.alone[r].gx) and noise.cosine is not None}
    if cosine is None or cosine >= least or not handed:
        return []
    worst = min(handed, key=lambda name: handed[name])
    return [
        f"but all together at r={r} it is left with {cosine:.2f}: leave '{worst}' exact, which hands back most noise"
        f" (gx cosine {handed[worst]:.2f}), or freeze this layer"
    ]


def gain_db(layer: LayerNoise, r: int) -> float | None:
    """How much better the SNR of g_x is than that of the averaged g_y: Proposition 1 says 0 or more.

    None where averaging changes nothing (patches of one pixel): there is no noise then that could travel.
    """
    gx, gy = layer.alone[r].gx, layer.alone[r].gy
    if gx is None or gx.snr_db is None or gy.snr_db is None or gy.snr_db >= CEILING_DB:
        return None
    return gx.snr_db - gy.snr_db


def as_options(advice: Sequence[Advice]) -> str:
    """What to append to a command line so that each layer gets what it bears."""
    return " ".join(f"--r {each.layer}={each.r if each.r is not None else 'exact'}" for each in advice)
