"""The two networks of the evidence: a ResNet and a MobileNetV2 for grey images of 28x28.

As in their large models at 224x224, the last layers see 7x7 maps: a patch of 7 covers one, those of 2 and 4 hang over.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from tests.models import initialise
from tests.models.mobilenet import InvertedResidual, conv_bn_relu
from tests.models.resnet import BasicBlock

CLASSES = 10


class SmallResNet(nn.Module):
    """Three stages of two basic blocks, at 28x28, 14x14 and 7x7: thirteen convolutions that count."""

    def __init__(self, widths: tuple[int, int, int] = (16, 32, 96)) -> None:
        super().__init__()
        first, second, third = widths
        self.conv1 = nn.Conv2d(1, first, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(first)
        self.relu = nn.ReLU(inplace=True)
        self.layer1 = nn.Sequential(BasicBlock(first, first, 1), BasicBlock(first, first, 1))
        self.layer2 = nn.Sequential(BasicBlock(first, second, 2), BasicBlock(second, second, 1))
        self.layer3 = nn.Sequential(BasicBlock(second, third, 2), BasicBlock(third, third, 1))
        self.fc = nn.Linear(third, CLASSES)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(x.mean(dim=(2, 3)))


class SmallMobileNetV2(nn.Module):
    """Inverted residuals under MobileNetV2's names, at 28x28, 14x14 and 7x7, and its last 1x1 convolution."""

    # expansion, channels, blocks, stride of the first block
    STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 2, 1), (6, 64, 2, 2), (6, 96, 1, 1))
    LAST = 256

    def __init__(self) -> None:
        super().__init__()
        channels = 16
        features: list[nn.Module] = [conv_bn_relu(1, channels, kernel=3)]
        for expansion, width, blocks, stride in self.STAGES:
            for block in range(blocks):
                features.append(InvertedResidual(channels, width, stride if block == 0 else 1, expansion))
                channels = width
        self.features = nn.Sequential(*features, conv_bn_relu(channels, self.LAST, kernel=1))
        self.classifier = nn.Linear(self.LAST, CLASSES)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).mean(dim=(2, 3)))


NETWORKS: dict[str, Callable[[], nn.Module]] = {"resnet": SmallResNet, "mobilenet_v2": SmallMobileNetV2}
NAMES = {"resnet": "ResNet", "mobilenet_v2": "MobileNetV2"}
