"""A network whose backward pass, not its forward pass, decides the arena: plans of it differ in what they take."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def small() -> tuple[nn.Module, Tensor, Tensor]:
    """Four convolutions, with a batch and its classes; the same every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(2, 6, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(6, 6, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(6, 8, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(8, 8, 1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 5),
        )
        return model, torch.randn(2, 2, 12, 12), torch.randint(0, 5, (2,))
