"""What was measured, as data for quality.json and as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from gfcompile.noise.advice import Advice, as_options, gain_db
from gfcompile.noise.measure import LayerNoise, Measured
from gfcompile.noise.similarity import CEILING_DB, Likeness
from gfcompile.report.units import by_x

COLUMNS = ("layer", "kernel", "output", "DC ratio", "r", "gw alone", "gx alone", "noise", "gw together", "gy arriving")
LEGEND = (
    "SNR in dB / cosine, filtered against exact. alone: only this layer is filtered; together: all of them are,\n"
    "and the noise of later layers arrives in gy. noise: SNR of gx less that of the averaged gy; Proposition 1\n"
    "says it is 0 or more where the DC ratio (equation 13) is 1 or more."
)


def as_data(measured: Measured, advice: Sequence[Advice]) -> dict[str, Any]:
    """For quality.json; patch edges are keys, as text."""
    words = {each.layer: each for each in advice}
    return {
        "numbers_are": "measured, in plain PyTorch on the given batch",
        "samples": measured.samples,
        "loss": measured.loss,
        "layers": [
            {
                "layer": layer.layer,
                "kernel": list(layer.geometry.kernel),
                "output": list(layer.geometry.out_size),
                "dc_energy_ratio": layer.energy.ratio,
                "pairs_with_dominant_dc": layer.energy.share,
                "proposition_1_assumption_holds": layer.energy.holds,
                "bears_r": words[layer.layer].r,
                "words": words[layer.layer].words,
                "alone": {
                    str(r): {**asdict(noise), "noise_gain_db": gain_db(layer, r)} for r, noise in layer.alone.items()
                },
                "together": {str(r): asdict(noise) for r, noise in layer.together.items()},
            }
            for layer in measured.layers
        ],
        "whole_step": {str(r): asdict(likeness) for r, likeness in measured.whole.items()},
        "stays_exact": [{"layer": layer, "reason": reason} for layer, reason in measured.refused],
        "options": as_options(advice),
    }


def rows(measured: Measured) -> list[tuple[str, ...]]:
    """One line per layer and patch edge; what does not depend on the edge stands in the first."""
    return [row for layer in measured.layers for row in _layer_rows(layer)]


def _layer_rows(layer: LayerNoise) -> list[tuple[str, ...]]:
    ratio = "no AC part" if layer.energy.ratio is None else f"{layer.energy.ratio:.2f}"
    head = (layer.layer, by_x(layer.geometry.kernel), by_x(layer.geometry.out_size), ratio)
    found = []
    for index, (r, alone) in enumerate(layer.alone.items()):
        gain, together = gain_db(layer, r), layer.together[r]
        found.append(
            (
                *(head if index == 0 else ("",) * len(head)),
                str(r),
                _cell(alone.gw),
                _cell(alone.gx),
                "-" if gain is None else f"{gain:+.1f} dB",
                _cell(together.gw),
                _cell(together.gy),
            )
        )
    return found


def words(measured: Measured, advice: Sequence[Advice]) -> str:
    """Which layers to leave exact, which r each of the others can bear, and the options that say so."""
    exact = [each.layer for each in advice if each.r is None]
    lines = [f"{each.layer}: {each.words}" for each in advice]
    lines += [f"{layer}: stays exact: {reason}" for layer, reason in measured.refused]
    lines += ["", f"leave exact: {', '.join(exact) or 'none of these'}"]
    whole = ", ".join(f"r={r} {_cell(likeness)}" for r, likeness in measured.whole.items())
    lines += [f"gw of all layers as one, all at one r: {whole}"]
    lines += [f"as options: {as_options(advice)}"]
    return "\n".join(lines)


def _cell(likeness: Likeness | None) -> str:
    if likeness is None:
        return "-"
    if likeness.snr_db is None or likeness.cosine is None:
        return "no gradient"
    if likeness.snr_db >= CEILING_DB:
        return "exact"
    return f"{likeness.snr_db:.1f} / {likeness.cosine:.3f}"
