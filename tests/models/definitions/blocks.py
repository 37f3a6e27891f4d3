"""The two pieces that nearly every definition has: a normalised convolution, and a head over the pooled map."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

CLASSES = 5


def conv_bn(
    in_channels: int,
    channels: int,
    kernel: int = 3,
    act: Callable[[], nn.Module] | None = nn.ReLU,
    **options: Any,
) -> nn.Sequential:
    """Convolution without bias, batch norm, activation; padded so that stride 1 keeps the map."""
    options.setdefault("padding", options.get("dilation", 1) * (kernel // 2))
    conv = nn.Conv2d(in_channels, channels, kernel, bias=False, **options)
    return nn.Sequential(conv, nn.BatchNorm2d(channels), *([] if act is None else [act()]))


def classifier(channels: int, classes: int = CLASSES) -> nn.Sequential:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(1), nn.Linear(channels, classes))
