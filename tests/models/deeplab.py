"""DeepLabV3 on a ResNet-18 whose last stage is dilated instead of strided."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.models import initialise
from tests.models.resnet import resnet18

RATES = (6, 12, 18)


class Pyramid(nn.Module):
    """Atrous spatial pyramid: one pixel, three dilations, the whole image."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            [_conv_bn(in_channels, channels, 1), *(_conv_bn(in_channels, channels, 3, rate) for rate in RATES)]
        )
        self.image = nn.Sequential(nn.AdaptiveAvgPool2d(1), _conv_bn(in_channels, channels, 1))
        self.project = _conv_bn(channels * (len(RATES) + 2), channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        image = F.interpolate(self.image(x), size=x.shape[-2:], mode="bilinear", align_corners=False)
        return self.project(torch.cat([*(branch(x) for branch in self.branches), image], dim=1))


class DeepLabV3(nn.Module):
    def __init__(self, num_classes: int, channels: int) -> None:
        super().__init__()
        backbone = resnet18()
        for module in backbone.layer4.modules():
            if isinstance(module, nn.Conv2d):
                module.stride = (1, 1)
                if module.kernel_size == (3, 3):
                    module.dilation = module.padding = (2, 2)
        parts = ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3", "layer4")
        self.backbone = nn.Sequential(*(getattr(backbone, part) for part in parts))
        self.classifier = nn.Sequential(
            Pyramid(512, channels), _conv_bn(channels, channels, 3), nn.Conv2d(channels, num_classes, 1)
        )
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(self.classifier(self.backbone(x)), size=x.shape[-2:], mode="bilinear", align_corners=False)


def _conv_bn(in_channels: int, channels: int, kernel: int, dilation: int = 1) -> nn.Sequential:
    padding = dilation * (kernel // 2)
    conv = nn.Conv2d(in_channels, channels, kernel, padding=padding, dilation=dilation, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(channels), nn.ReLU(inplace=True))


def deeplabv3(num_classes: int = 21, channels: int = 256) -> DeepLabV3:
    return DeepLabV3(num_classes, channels)
