"""ResNet-18 and -34 under torchvision's parameter names, and one with a block a stage."""

from __future__ import annotations

from torch import Tensor, nn

from tests.models import initialise


class BasicBlock(nn.Module):
    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or in_channels != channels:
            projection = nn.Conv2d(in_channels, channels, 1, stride, bias=False)
            self.downsample = nn.Sequential(projection, nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self, depths: tuple[int, int, int, int], num_classes: int, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = _stage(width, width, depths[0], stride=1)
        self.layer2 = _stage(width, 2 * width, depths[1], stride=2)
        self.layer3 = _stage(2 * width, 4 * width, depths[2], stride=2)
        self.layer4 = _stage(4 * width, 8 * width, depths[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(8 * width, num_classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))


def _stage(in_channels: int, channels: int, depth: int, stride: int) -> nn.Sequential:
    first = BasicBlock(in_channels, channels, stride)
    return nn.Sequential(first, *(BasicBlock(channels, channels, stride=1) for _ in range(depth - 1)))


def resnet10(num_classes: int = 1000, width: int = 64) -> ResNet:
    return ResNet((1, 1, 1, 1), num_classes, width)


def resnet18(num_classes: int = 1000, width: int = 64) -> ResNet:
    return ResNet((2, 2, 2, 2), num_classes, width)


def resnet34(num_classes: int = 1000, width: int = 64) -> ResNet:
    return ResNet((3, 4, 6, 3), num_classes, width)
