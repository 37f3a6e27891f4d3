"""The kernel's energy ratio against NumPy, and Proposition 1 where its assumption holds and where it does not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gfcompile
from gfcompile.noise.advice import gain_db
from gfcompile.noise.spectrum import KernelEnergy, energy_ratios, kernel_energy
from tests.noise.eager_filter import snr_db

SMOOTH = [[1.0, 2.0, 1.0], [2.0, 4.0, 2.0], [1.0, 2.0, 1.0]]
EDGES = [[0.0, -1.0, 0.0], [-1.0, 4.2, -1.0], [0.0, -1.0, 0.0]]  # almost no DC: a Laplacian


def test_equation_13_in_numpy() -> None:
    weight = torch.randn(4, 3, 3, 5, generator=torch.Generator().manual_seed(0))
    energy = np.abs(np.fft.fft2(weight.numpy().astype(np.float64))) ** 2
    dc, others = energy[..., 0, 0], energy.reshape(4, 3, 15)[..., 1:].max(-1)
    found = kernel_energy(weight)
    assert found.ratio == pytest.approx(dc.sum() / others.sum())
    assert found.share == pytest.approx(float((dc >= others).mean()))
    assert [part.numpy() for part in energy_ratios(weight)] == [pytest.approx(dc), pytest.approx(others)]


def test_on_a_plane_the_kernel_is_laid_out_or_wrapped_around() -> None:
    weight = torch.randn(1, 1, 3, 3, generator=torch.Generator().manual_seed(1)).double()
    padded = np.abs(np.fft.fft2(weight.numpy()[0, 0], (6, 6))) ** 2
    _, largest = energy_ratios(weight, (6, 6))
    assert float(largest) == pytest.approx(padded.ravel()[1:].max())
    wrapped = weight.numpy()[0, 0].copy()
    wrapped[0] += wrapped[2]
    wrapped[:, 0] += wrapped[:, 2]
    _, largest = energy_ratios(weight, (2, 2))
    assert float(largest) == pytest.approx((np.abs(np.fft.fft2(wrapped[:2, :2])) ** 2).ravel()[1:].max())


def through(kernel: np.ndarray, gy: np.ndarray) -> np.ndarray:
    """g_x of one channel with circular borders: the paper's equation (10), by shifts and not by Fourier."""
    return sum(
        kernel[u, v] * np.roll(gy, (-u, -v), (0, 1)) for u in range(kernel.shape[0]) for v in range(kernel.shape[1])
    )


@pytest.mark.parametrize("r", [2, 3, 4, 7])
def test_proposition_1(r: int) -> None:
    """One patch, as in the paper: averaging leaves g_y its DC part, and what comes through the kernel is compared."""
    rng = np.random.default_rng(r)
    met = violated = worse = 0
    for _ in range(400):
        kernel, gy = rng.normal(rng.uniform(-0.6, 0.6), 0.5, (3, 3)), rng.normal(rng.uniform(-1, 1), 1.0, (r, r))
        average = np.full_like(gy, gy.mean())
        before, after = snr_db(gy, average), snr_db(through(kernel, gy), through(kernel, average))
        if kernel_energy(torch.tensor(kernel)[None, None], (r, r)).holds:
            met += 1
            assert after >= before - 1e-9
        else:
            violated += 1
            worse += after < before - 1e-9
    assert met > 50
    assert violated > 50
    assert worse > violated / 2, "where the assumption fails, so does the inequality, mostly"


def test_the_counter_example_is_flagged() -> None:
    kernel = torch.tensor(EDGES)[None, None]
    found = kernel_energy(kernel)
    assert found.ratio is not None
    assert found.ratio < 0.01
    assert not found.holds
    assert kernel_energy(torch.tensor(SMOOTH)[None, None]).holds
    gy = 1.0 + 0.3 * np.random.default_rng(0).normal(size=(3, 3))
    average = np.full_like(gy, gy.mean())
    assert snr_db(through(kernel[0, 0].numpy(), gy), through(kernel[0, 0].numpy(), average)) < snr_db(gy, average) - 10


def test_kernels_of_one_tap_have_no_other_component() -> None:
    assert kernel_energy(torch.ones(2, 2, 1, 1)) == KernelEnergy(None, 1.0)
    assert kernel_energy(torch.ones(2, 2, 1, 1)).holds


class Kernels(nn.Module):
    """A pointwise stem and one depthwise layer of a given kernel, after it a loss that is smooth over the map."""

    def __init__(self, kernel: list[list[float]]) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 1)
        self.conv = nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False)
        self.head = nn.Linear(4 * 16, 5)
        with torch.no_grad():
            self.conv.weight.copy_(torch.tensor(kernel).expand(4, 1, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        pooled = nn.functional.avg_pool2d(self.conv(self.stem(x)).sigmoid(), 4)
        return self.head(pooled.flatten(1))


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "flagged"), [(SMOOTH, False), (EDGES, True)])
def test_in_a_network(kernel: list[list[float]], flagged: bool) -> None:
    """The words flag the violated assumption, and the noise that was seen to grow."""
    torch.manual_seed(0)
    model, x, y = Kernels(kernel), torch.randn(6, 1, 16, 16), torch.arange(6) % 5
    quality = gfcompile.quality(model, x, y, layers=1, r=(4,), cosine=0.0)
    (layer,) = quality.measured.layers
    (advice,) = quality.advice
    gain = gain_db(layer, 4)
    assert gain is not None
    assert ("violates the assumption of Proposition 1" in advice.words) is flagged
    assert ("noise grows by" in advice.words) is flagged
    assert (gain < 0) is flagged
    (row,) = quality.as_data()["layers"]
    assert row["proposition_1_assumption_holds"] is not flagged
