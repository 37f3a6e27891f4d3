"""A kernel's energy by frequency: how much of it is the sum of its taps (the paper's equation 13 and Table 5).

Proposition 1 of the gradient-filtering paper: if the DC component of a kernel has at least the energy of every other
component, then the noise that filtering put into g_y is, beside the signal, no larger in g_x. It is proved for one pair
of channels, circular borders and one patch; `noise/measure.py` says what becomes of it in a real layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class KernelEnergy:
    """`ratio` is DC energy over the largest other one, each summed over the pairs of channels; None for 1x1 kernels,
    which have no other. `share` is the part of the pairs that meet the assumption by themselves."""

    ratio: float | None
    share: float

    @property
    def holds(self) -> bool:
        """Whether the layer meets the assumption of Proposition 1."""
        return self.ratio is None or self.ratio >= 1.0


def energy_ratios(weight: Tensor, size: tuple[int, int] | None = None) -> tuple[Tensor, Tensor]:
    """DC energy and the largest other energy of every pair of channels, [Co, Ci/groups] each: equation (13).

    The frequencies are those of the kernel's own grid, or of a plane of `size` on which the kernel is laid out (and
    wrapped around, where it is larger).
    """
    kernel = weight.detach().to(torch.float64)
    if size is not None:
        kernel = _wrapped(kernel, size)
    energy = torch.fft.fft2(kernel).abs().square().flatten(2)  # [Co, Ci/groups, kh*kw]
    if energy.shape[2] == 1:
        return energy[..., 0], torch.zeros_like(energy[..., 0])
    return energy[..., 0], energy[..., 1:].amax(2)


def kernel_energy(weight: Tensor, size: tuple[int, int] | None = None) -> KernelEnergy:
    """The layer in two numbers."""
    dc, largest = energy_ratios(weight, size)
    total = float(largest.sum())
    return KernelEnergy(float(dc.sum()) / total if total else None, float((dc >= largest).double().mean()))


def _wrapped(kernel: Tensor, size: tuple[int, int]) -> Tensor:
    plane = kernel.new_zeros(*kernel.shape[:2], *size)
    for row in range(kernel.shape[2]):
        for column in range(kernel.shape[3]):
            plane[:, :, row % size[0], column % size[1]] += kernel[:, :, row, column]
    return plane
