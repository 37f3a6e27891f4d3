"""A small residual network for 28x28 grey images: a stem and three stages of one block (28x28, 14x14, 7x7)."""

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Two 3x3 convolutions around a shortcut; a 1x1 projection where the shape changes."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or in_channels != channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(in_channels, channels, 1, stride, bias=False),
                nn.BatchNorm2d(channels),
            )

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return torch.relu(y + self.downsample(x))


class FashionResNet(nn.Module):
    """Nine convolutions (two of them projections) and a linear classifier, about 78 000 parameters."""

    def __init__(self, widths: tuple[int, int, int] = (16, 32, 64), classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, widths[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.layer1 = nn.Sequential(Block(widths[0], widths[0], stride=1))
        self.layer2 = nn.Sequential(Block(widths[0], widths[1], stride=2))
        self.layer3 = nn.Sequential(Block(widths[1], widths[2], stride=2))
        self.fc = nn.Linear(widths[2], classes)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))  # [N, 16, 28, 28]
        x = self.layer3(self.layer2(self.layer1(x)))  # [N, 64, 7, 7]
        return self.fc(x.mean(dim=(2, 3)))
