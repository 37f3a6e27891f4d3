"""A small network in the manner of DenseNet: pre-activation bottleneck layers, each concatenated to all before it.

Three dense blocks of four layers, with half the channels and half the map after each but the last; torchvision's names.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.models import initialise

BOTTLENECK = 4  # channels inside a layer, in multiples of what it adds


class DenseLayer(nn.Module):
    """BatchNorm, ReLU, convolution, twice; what comes out is appended to what went in."""

    def __init__(self, in_channels: int, growth: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(in_channels)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(in_channels, BOTTLENECK * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(BOTTLENECK * growth)
        self.relu2 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(BOTTLENECK * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv1(self.relu1(self.norm1(x)))
        out = self.conv2(self.relu2(self.norm2(out)))
        return torch.cat([x, out], dim=1)


class Transition(nn.Sequential):
    """Half the channels, then half the map."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(in_channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv = nn.Conv2d(in_channels, channels, 1, bias=False)
        self.pool = nn.AvgPool2d(2)


class DenseNetLike(nn.Module):
    def __init__(self, depths: tuple[int, ...], num_classes: int, width: int) -> None:
        super().__init__()
        growth, channels = width // 2, width
        self.features = nn.Sequential()
        self.features.add_module("conv0", nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False))
        self.features.add_module("norm0", nn.BatchNorm2d(channels))
        self.features.add_module("relu0", nn.ReLU(inplace=True))
        self.features.add_module("pool0", nn.MaxPool2d(3, stride=2, padding=1))
        for number, depth in enumerate(depths, start=1):
            block = nn.Sequential(*(DenseLayer(channels + layer * growth, growth) for layer in range(depth)))
            self.features.add_module(f"denseblock{number}", block)
            channels += depth * growth
            if number < len(depths):
                self.features.add_module(f"transition{number}", Transition(channels, channels // 2))
                channels //= 2
        self.features.add_module(f"norm{len(depths) + 1}", nn.BatchNorm2d(channels))
        self.classifier = nn.Linear(channels, num_classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.relu(self.features(x), inplace=True)
        return self.classifier(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))


def densenet_like(num_classes: int = 1000, width: int = 64, depths: tuple[int, ...] = (4, 4, 4)) -> DenseNetLike:
    """`width`: channels after the stem; a layer adds half as many."""
    return DenseNetLike(depths, num_classes, width)
