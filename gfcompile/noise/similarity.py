"""Two numbers that say how like the exact gradient another one is."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

CEILING_DB = 120.0  # float32 gradients that are equal but for rounding agree to about this


@dataclass(frozen=True)
class Likeness:
    """`snr_db` is 10 log10(|exact|^2 / |exact - found|^2), at most CEILING_DB; `cosine` is that of their angle.

    Both are None where the exact gradient is zero: nothing can be said then.
    """

    snr_db: float | None
    cosine: float | None


class Comparison:
    """Adds up pairs of tensors, in float64; a gradient in several parts is compared as one long vector."""

    def __init__(self) -> None:
        self.signal = self.noise = self.found = self.product = 0.0

    def add(self, exact: Tensor, found: Tensor) -> None:
        """One more pair of tensors."""
        a, b = exact.to(torch.float64).flatten(), found.to(torch.float64).flatten()
        self.signal += float(a @ a)
        self.found += float(b @ b)
        self.product += float(a @ b)
        difference = a - b
        self.noise += float(difference @ difference)

    def result(self) -> Likeness:
        """Of all pairs together; unknown where nothing exact is there to compare with."""
        if self.signal == 0.0 or not math.isfinite(self.signal + self.found):
            return Likeness(None, None)
        snr = 10 * math.log10(self.signal / self.noise) if self.noise else math.inf
        cosine = self.product / math.sqrt(self.signal * self.found) if self.found else 0.0
        return Likeness(min(snr, CEILING_DB), cosine)


def compare(exact: Tensor, found: Tensor) -> Likeness:
    """One pair of tensors."""
    comparison = Comparison()
    comparison.add(exact, found)
    return comparison.result()
