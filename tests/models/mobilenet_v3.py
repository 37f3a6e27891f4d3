"""A small network in the manner of MobileNetV3: inverted residuals, hardswish, squeeze-excite gates of convolutions.

Six blocks of MobileNetV3-Small's eleven, under torchvision's names for the parts (`features.3.block.1.0`).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from tests.models import initialise


@dataclass(frozen=True)
class Block:
    kernel: int
    expanded: int
    channels: int
    has_gate: bool
    activation: type[nn.Module]
    stride: int


STEM_CHANNELS, LAST_CHANNELS, CLASSIFIER_CHANNELS = 16, 576, 256
BLOCKS = (
    Block(3, 16, 16, True, nn.ReLU, 2),
    Block(3, 72, 24, False, nn.ReLU, 2),
    Block(5, 96, 40, True, nn.Hardswish, 2),
    Block(5, 240, 40, True, nn.Hardswish, 1),
    Block(5, 288, 96, True, nn.Hardswish, 2),
    Block(5, 576, 96, True, nn.Hardswish, 1),
)


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.activation = nn.ReLU()
        self.fc2 = nn.Conv2d(squeezed, channels, 1)
        self.scale_activation = nn.Hardsigmoid()

    def forward(self, x: Tensor) -> Tensor:
        scale = self.fc2(self.activation(self.fc1(self.avgpool(x))))
        return self.scale_activation(scale) * x


class InvertedResidual(nn.Module):
    def __init__(self, in_channels: int, block: Block, width: float) -> None:
        super().__init__()
        hidden, channels = _round_channels(block.expanded * width), _round_channels(block.channels * width)
        layers: list[nn.Module] = []
        if hidden != in_channels:
            layers.append(_conv_bn(in_channels, hidden, block.activation, kernel=1))
        layers.append(
            _conv_bn(hidden, hidden, block.activation, kernel=block.kernel, stride=block.stride, groups=hidden)
        )
        if block.has_gate:
            layers.append(SqueezeExcite(hidden, _round_channels(hidden / 4)))
        layers.append(_conv_bn(hidden, channels, None, kernel=1))
        self.block = nn.Sequential(*layers)
        self.has_shortcut = block.stride == 1 and in_channels == channels

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x) if self.has_shortcut else self.block(x)


class MobileNetV3Like(nn.Module):
    def __init__(self, num_classes: int, width: float, blocks: tuple[Block, ...] = BLOCKS) -> None:
        super().__init__()
        channels = _round_channels(STEM_CHANNELS * width)
        features: list[nn.Module] = [_conv_bn(3, channels, nn.Hardswish, kernel=3, stride=2)]
        for block in blocks:
            features.append(InvertedResidual(channels, block, width))
            channels = _round_channels(block.channels * width)
        last, hidden = _round_channels(LAST_CHANNELS * width), _round_channels(CLASSIFIER_CHANNELS * width)
        features.append(_conv_bn(channels, last, nn.Hardswish, kernel=1))
        self.features = nn.Sequential(*features)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(nn.Linear(last, hidden), nn.Hardswish(), nn.Linear(hidden, num_classes))
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


def _conv_bn(
    in_channels: int, channels: int, activation: type[nn.Module] | None, kernel: int, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    conv = nn.Conv2d(in_channels, channels, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    after = [] if activation is None else [activation(inplace=True)]
    return nn.Sequential(conv, nn.BatchNorm2d(channels), *after)


def _round_channels(channels: float) -> int:
    """The nearest multiple of 8, at least 8."""
    return max(8, int(channels + 4) // 8 * 8)


def mobilenet_v3_like(num_classes: int = 1000, width: float = 1.0) -> MobileNetV3Like:
    return MobileNetV3Like(num_classes, width)


def short_mobilenet_v3(num_classes: int = 1000, width: float = 1.0) -> MobileNetV3Like:
    """Three blocks: without a gate, with one, and with a shortcut."""
    return MobileNetV3Like(num_classes, width, BLOCKS[1:4])
