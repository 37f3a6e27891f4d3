"""Networks the tests train: torchvision-shaped ones with its parameter names, and a zoo of tiny ones.

Here: weights and BatchNorm values under which an untrained network behaves like a trained one.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

M = TypeVar("M", bound=nn.Module)


def initialise(model: nn.Module) -> None:
    """Kaiming over the fan-in, so that a depthwise convolution keeps its scale as a dense one does."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.1)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
            nn.init.normal_(module.bias, std=0.1)


@torch.no_grad()
def randomise_statistics(model: M, seed: int) -> M:
    """Fill every BatchNorm's running statistics and affine parameters, in place; the same seed, the same values.

    Variances lie above the activations' own, or residual sums would double in power at every block.
    """
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0.0, 0.1, generator=generator)
            module.running_var.uniform_(1.0, 3.0, generator=generator)
            module.weight.uniform_(0.6, 1.2, generator=generator)
            module.bias.normal_(0.0, 0.1, generator=generator)
    return model
