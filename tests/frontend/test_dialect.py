"""What the dialect refuses, it refuses in the user's words; what it accepts is compared in tests/operators."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gfcompile.errors import UserError
from gfcompile.frontend.losses import resolve_loss
from gfcompile.job import Job
from gfcompile.settings.schema import Request
from gfcompile.stages import find_unsupported


class Sampled(nn.Module):
    def __init__(self, mode: str) -> None:
        super().__init__()
        self.conv, self.head, self.mode = nn.Conv2d(3, 4, 3), nn.Linear(4, 2), mode

    def forward(self, x: Tensor) -> Tensor:
        grid = torch.linspace(-1, 1, 32).reshape(1, 4, 4, 2).expand(x.shape[0], -1, -1, -1)
        return self.head(F.grid_sample(self.conv(x), grid, mode=self.mode, align_corners=False).mean((2, 3)))


def job(mode: str) -> Job:
    return Job(Sampled(mode), (torch.randn(2, 3, 8, 8),), resolve_loss("cross_entropy"), Request(layers=1))


@pytest.mark.slow
def test_a_mode_of_grid_sample_that_is_not_compiled() -> None:
    assert find_unsupported(job("bilinear"))[1] == []
    with pytest.raises(UserError) as refusal:
        find_unsupported(job("bicubic"))
    expected = "model: grid_sample of volumes, or in mode 'bicubic', is not compiled; use bilinear or nearest"
    assert str(refusal.value) == expected
