"""The chain of architectures up to the residual networks, in torchvision's and timm's manner."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.models.definitions.blocks import CLASSES, classifier, conv_bn
from tests.models.definitions.definition import define


class LeNet(nn.Module):
    """LeNet: tanh, average pooling, unpadded convolutions, the map flattened by `view`."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.conv2 = nn.Conv2d(6, 12, 3)
        self.conv3 = nn.Conv2d(12, 16, 5)
        self.conv4 = nn.Conv2d(16, 18, 2)
        self.conv5 = nn.Conv2d(18, 30, 3)
        self.fc1 = nn.Linear(30, 21)
        self.fc2 = nn.Linear(21, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.avg_pool2d(torch.tanh(self.conv1(x)), 2)
        x = torch.tanh(self.conv2(x))
        x = F.avg_pool2d(torch.tanh(self.conv3(x)), 2)
        x = torch.tanh(self.conv5(torch.tanh(self.conv4(x))))
        x = x.view(-1, 30)
        return self.fc2(torch.tanh(self.fc1(x)))


class AlexNet(nn.Module):
    """AlexNet: overlapping max pools, local response normalisation, grouped convolutions, dropout before the head."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 7, stride=2, padding=2),
            nn.ReLU(inplace=True),
            nn.LocalResponseNorm(5, alpha=0.1, beta=0.75, k=2.0),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(16, 24, 5, padding=2, groups=2),
            nn.ReLU(inplace=True),
            nn.LocalResponseNorm(4, alpha=0.2, k=1.5),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(24, 32, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(32, 32, 3, padding=1, groups=2),
            nn.ReLU(inplace=True),
            nn.Conv2d(32, 24, 3, padding=1, groups=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2),
        )
        self.avgpool = nn.AdaptiveAvgPool2d((2, 2))
        self.classifier = nn.Sequential(
            nn.Dropout(0.5), nn.Linear(24 * 4, 32), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(32, CLASSES)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.avgpool(self.features(x))
        return self.classifier(torch.flatten(x, 1))


class VGG(nn.Module):
    """VGG: biased 3x3 convolutions between max pools, an adaptive pool that repeats cells, a fully connected head."""

    def __init__(self, batch_norm: bool = False) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for width in (8, "M", 16, "M", 24, 24, "M", 32, 32, "M"):
            if width == "M":
                layers.append(nn.MaxPool2d(kernel_size=2, stride=2))
                continue
            layers.append(nn.Conv2d(channels, int(width), kernel_size=3, padding=1))
            layers += [nn.BatchNorm2d(int(width))] if batch_norm else []
            layers.append(nn.ReLU(inplace=True))
            channels = int(width)
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d((3, 3))  # of a 2x2 map
        self.classifier = nn.Sequential(
            nn.Linear(channels * 9, 40), nn.ReLU(True), nn.Dropout(p=0.5), nn.Linear(40, CLASSES)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.avgpool(self.features(x))
        x = torch.flatten(x, 1)
        return self.classifier(x)


def vgg_bn() -> nn.Module:
    """VGG with batch norm after biased convolutions."""
    return VGG(batch_norm=True)


class NetworkInNetwork(nn.Module):
    """Network in network: 1x1 convolutions between, and the class maps averaged: no linear layer at all."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 20, 5, padding=2),
            nn.ReLU(),
            nn.Conv2d(20, 16, 1),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            nn.Dropout(0.5),
            nn.Conv2d(16, 24, 5, padding=2),
            nn.ReLU(),
            nn.Conv2d(24, 24, 1),
            nn.ReLU(),
            nn.AvgPool2d(3, 2, ceil_mode=True),
            nn.Conv2d(24, 24, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(24, CLASSES, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        return F.avg_pool2d(x, kernel_size=x.size()[2:]).squeeze(-1).squeeze(-1)


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, in_channels: int, width: int, stride: int, groups: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = None
        if stride != 1 or in_channels != width:
            self.downsample = conv_bn(in_channels, width, kernel=1, act=None, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class Bottleneck(nn.Module):
    expansion = 2

    def __init__(self, in_channels: int, width: int, stride: int, groups: int = 1) -> None:
        super().__init__()
        channels = width * self.expansion
        self.conv1 = nn.Conv2d(in_channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, groups=groups, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or in_channels != channels:
            self.downsample = conv_bn(in_channels, channels, kernel=1, act=None, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self, block: type[BasicBlock | Bottleneck], widths: tuple[int, ...], groups: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 12, kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(12)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        channels = 12
        for number, width in enumerate(widths, start=1):
            stride = 1 if number == 1 else 2
            setattr(self, f"layer{number}", nn.Sequential(block(channels, width, stride, groups)))
            channels = width * block.expansion
        self.depth = len(widths)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(channels, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for number in range(1, self.depth + 1):
            x = getattr(self, f"layer{number}")(x)
        return self.fc(torch.flatten(self.avgpool(x), 1))


def resnet_basic() -> nn.Module:
    """ResNet of basic blocks: an in-place residual sum, projected shortcuts."""
    return ResNet(BasicBlock, (12, 18, 24))


def resnet_bottleneck() -> nn.Module:
    """ResNet of bottleneck blocks, the stride in the 3x3 convolution."""
    return ResNet(Bottleneck, (10, 14, 18))


def resnext() -> nn.Module:
    """ResNeXt: bottlenecks whose 3x3 convolution has groups."""
    return ResNet(Bottleneck, (12, 16, 24), groups=4)


class DeepStemResNet(nn.Module):
    """ResNet-D: a stem of three 3x3 convolutions, an average pool in front of each 1x1 shortcut."""

    class Block(nn.Module):
        def __init__(self, in_channels: int, channels: int, stride: int) -> None:
            super().__init__()
            self.conv1 = conv_bn(in_channels, channels, stride=stride)
            self.conv2 = conv_bn(channels, channels, act=None)
            pool = nn.AvgPool2d(2, stride, ceil_mode=True, count_include_pad=False) if stride > 1 else nn.Identity()
            self.downsample = nn.Sequential(pool, *conv_bn(in_channels, channels, kernel=1, act=None))
            self.act = nn.ReLU(inplace=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.act(self.conv2(self.conv1(x)) + self.downsample(x))

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv_bn(3, 8, stride=2), conv_bn(8, 8), conv_bn(8, 16))
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.blocks = nn.Sequential(self.Block(16, 20, stride=2), self.Block(20, 28, stride=2))
        self.head = classifier(28)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.maxpool(self.stem(x))))


class PreActBlock(nn.Module):
    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.has_projection = stride != 1 or in_channels != channels
        if self.has_projection:
            self.shortcut = nn.Conv2d(in_channels, channels, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(x))
        shortcut = self.shortcut(out) if self.has_projection else x
        out = self.conv1(out)
        out = self.conv2(F.relu(self.bn2(out)))
        return out + shortcut


class PreActResNet(nn.Module):
    """Pre-activation ResNet: norm and ReLU ahead of each convolution, clean sums, a last norm before pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 12, 3, padding=1, bias=False)
        self.layers = nn.Sequential(PreActBlock(12, 12, 1), PreActBlock(12, 20, 2), PreActBlock(20, 28, 2))
        self.norm = nn.BatchNorm2d(28)
        self.linear = nn.Linear(28, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norm(self.layers(self.conv1(x))))
        out = F.avg_pool2d(out, 8)
        return self.linear(out.view(out.size(0), -1))


class DenseLayer(nn.Module):
    def __init__(self, in_channels: int, growth: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(in_channels)
        self.conv1 = nn.Conv2d(in_channels, 2 * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(2 * growth)
        self.conv2 = nn.Conv2d(2 * growth, growth, 3, padding=1, bias=False)

    def forward(self, features: list[Tensor]) -> Tensor:
        out = self.conv1(F.relu(self.norm1(torch.cat(features, 1)), inplace=True))
        return self.conv2(F.relu(self.norm2(out), inplace=True))


class DenseNet(nn.Module):
    """DenseNet: every layer reads the list of all features before it; halving transitions with average pools."""

    def __init__(self) -> None:
        super().__init__()
        self.conv0 = nn.Conv2d(3, 14, 3, stride=2, padding=1, bias=False)
        self.denseblock1 = nn.ModuleList(DenseLayer(14 + 7 * i, 7) for i in range(3))
        self.transition = nn.Sequential(
            nn.BatchNorm2d(35), nn.ReLU(inplace=True), nn.Conv2d(35, 17, 1, bias=False), nn.AvgPool2d(2, stride=2)
        )
        self.denseblock2 = nn.ModuleList(DenseLayer(17 + 7 * i, 7) for i in range(3))
        self.norm5 = nn.BatchNorm2d(38)
        self.classifier = nn.Linear(38, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        features = [self.conv0(x)]
        for layer in self.denseblock1:
            features.append(layer(features))
        features = [self.transition(torch.cat(features, 1))]
        for layer in self.denseblock2:
            features.append(layer(features))
        out = F.relu(self.norm5(torch.cat(features, 1)), inplace=True)
        return self.classifier(torch.flatten(F.adaptive_avg_pool2d(out, (1, 1)), 1))


class Fire(nn.Module):
    def __init__(self, in_channels: int, squeezed: int, expanded: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(in_channels, squeezed, 1)
        self.squeeze_activation = nn.ReLU(inplace=True)
        self.expand1x1 = nn.Conv2d(squeezed, expanded, 1)
        self.expand1x1_activation = nn.ReLU(inplace=True)
        self.expand3x3 = nn.Conv2d(squeezed, expanded, 3, padding=1)
        self.expand3x3_activation = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.squeeze_activation(self.squeeze(x))
        return torch.cat(
            [self.expand1x1_activation(self.expand1x1(x)), self.expand3x3_activation(self.expand3x3(x))], 1
        )


class SqueezeNet(nn.Module):
    """SqueezeNet: fire modules, ceil-mode max pools, a 1x1 convolution and ReLU as the classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, kernel_size=3, stride=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=3, stride=2, ceil_mode=True),
            Fire(16, 6, 10),
            nn.MaxPool2d(kernel_size=3, stride=2, ceil_mode=True),
            Fire(20, 8, 14),
        )
        final_conv = nn.Conv2d(28, CLASSES, kernel_size=1)
        self.classifier = nn.Sequential(
            nn.Dropout(p=0.5), final_conv, nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d((1, 1))
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.flatten(self.classifier(self.features(x)), 1)


FAMILY = "classic"
DEFINITIONS = (
    define("lenet", FAMILY, LeNet),
    define("alexnet", FAMILY, AlexNet, ((2, 3, 63, 63),)),
    define("vgg", FAMILY, VGG),
    define("vgg_bn", FAMILY, vgg_bn, ((2, 3, 48, 40),)),
    define("network_in_network", FAMILY, NetworkInNetwork),
    define("resnet_basic", FAMILY, resnet_basic, ((2, 3, 64, 64),)),
    define("resnet_bottleneck", FAMILY, resnet_bottleneck, ((2, 3, 56, 56),)),
    define("resnext", FAMILY, resnext, ((2, 3, 64, 48),)),
    define("resnet_d", FAMILY, DeepStemResNet, ((2, 3, 60, 60),)),
    define("preact_resnet", FAMILY, PreActResNet),
    define("densenet", FAMILY, DenseNet, ((2, 3, 30, 30),)),
    define("squeezenet", FAMILY, SqueezeNet, ((2, 3, 57, 57),)),
)
