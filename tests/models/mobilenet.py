"""MobileNetV2 under torchvision's parameter names, and its first four blocks."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from tests.models import initialise

# expansion, channels, blocks, stride of the first block: the MobileNetV2 paper's table 2
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


class InvertedResidual(nn.Module):
    def __init__(self, in_channels: int, channels: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = in_channels * expansion
        expand = [conv_bn_relu(in_channels, hidden, kernel=1)] if expansion != 1 else []
        self.conv = nn.Sequential(
            *expand,
            conv_bn_relu(hidden, hidden, kernel=3, stride=stride, groups=hidden),
            nn.Conv2d(hidden, channels, 1, bias=False),
            nn.BatchNorm2d(channels),
        )
        self.has_shortcut = stride == 1 and in_channels == channels

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.has_shortcut else self.conv(x)


class MobileNetV2(nn.Module):
    def __init__(
        self, num_classes: int, width_mult: float, stages: Sequence[tuple[int, int, int, int]] = STAGES
    ) -> None:
        super().__init__()
        channels = _round_channels(32 * width_mult)
        features: list[nn.Module] = [conv_bn_relu(3, channels, kernel=3, stride=2)]
        for expansion, stage_channels, blocks, first_stride in stages:
            for block in range(blocks):
                in_channels, channels = channels, _round_channels(stage_channels * width_mult)
                features.append(InvertedResidual(in_channels, channels, first_stride if block == 0 else 1, expansion))
        last_channels = _round_channels(1280 * max(1.0, width_mult))
        features.append(conv_bn_relu(channels, last_channels, kernel=1))
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(last_channels, num_classes))
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.adaptive_avg_pool2d(self.features(x), (1, 1))
        return self.classifier(x.flatten(1))


def conv_bn_relu(in_channels: int, channels: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(in_channels, channels, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(channels), nn.ReLU6(inplace=True))


def _round_channels(channels: float) -> int:
    """The nearest multiple of 8, never more than a tenth below what was asked."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded


def mobilenet_v2(num_classes: int = 1000, width_mult: float = 1.0) -> MobileNetV2:
    return MobileNetV2(num_classes, width_mult)


def short_mobilenet_v2(num_classes: int = 1000, width_mult: float = 1.0) -> MobileNetV2:
    """Every kind of block once: without expansion, strided, with a shortcut."""
    return MobileNetV2(num_classes, width_mult, (*STAGES[:2], (6, 32, 1, 2)))
