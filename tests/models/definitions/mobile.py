"""Separable, inverted, shuffled and re-parameterised: the families made for small devices."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.models.definitions.blocks import CLASSES, classifier, conv_bn
from tests.models.definitions.definition import define


class MobileNetV1(nn.Module):
    """MobileNet V1: depthwise and pointwise convolutions in turn, strides in the depthwise ones."""

    def __init__(self) -> None:
        super().__init__()
        layers = [conv_bn(3, 12, stride=2)]
        for in_channels, channels, stride in ((12, 16, 1), (16, 24, 2), (24, 36, 1), (36, 48, 2)):
            layers += [conv_bn(in_channels, in_channels, stride=stride, groups=in_channels)]
            layers += [conv_bn(in_channels, channels, kernel=1)]
        self.model = nn.Sequential(*layers, nn.AvgPool2d(5))
        self.fc = nn.Linear(48, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.model(x)
        x = x.view(-1, 48)
        return self.fc(x)


def stochastic_depth(x: Tensor, p: float, training: bool) -> Tensor:
    """Drop whole samples of a residual branch; nothing in eval mode."""
    if not training or p == 0.0:
        return x
    noise = torch.empty([x.shape[0]] + [1] * (x.ndim - 1), dtype=x.dtype, device=x.device)
    return x * noise.bernoulli_(1.0 - p).div_(1.0 - p)


class StochasticDepth(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return stochastic_depth(x, self.p, self.training)


class SqueezeExcitation(nn.Module):
    def __init__(self, channels: int, squeezed: int, act: type[nn.Module], gate: type[nn.Module]) -> None:
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.fc2 = nn.Conv2d(squeezed, channels, 1)
        self.activation, self.scale_activation = act(), gate()

    def forward(self, x: Tensor) -> Tensor:
        scale = self.fc2(self.activation(self.fc1(self.avgpool(x))))
        return self.scale_activation(scale) * x


class InvertedResidual(nn.Module):
    def __init__(
        self,
        in_channels: int,
        channels: int,
        stride: int = 1,
        expansion: int = 4,
        kernel: int = 3,
        act: type[nn.Module] = nn.ReLU6,
        gate: tuple[type[nn.Module], type[nn.Module]] | None = None,
        drop: float = 0.0,
    ) -> None:
        super().__init__()
        hidden = in_channels * expansion
        layers = [conv_bn(in_channels, hidden, kernel=1, act=act)] if expansion != 1 else []
        layers.append(conv_bn(hidden, hidden, kernel=kernel, act=act, stride=stride, groups=hidden))
        if gate is not None:
            layers.append(SqueezeExcitation(hidden, max(4, in_channels // 4), *gate))
        layers.append(conv_bn(hidden, channels, kernel=1, act=None))
        self.conv = nn.Sequential(*layers)
        self.drop = StochasticDepth(drop)
        self.use_res_connect = stride == 1 and in_channels == channels

    def forward(self, x: Tensor) -> Tensor:
        if self.use_res_connect:
            return x + self.drop(self.conv(x))
        return self.conv(x)


class MobileNet(nn.Module):
    """A stem, inverted residuals and a pointwise last convolution; the head over `x.mean([2, 3])`."""

    def __init__(self, stem: nn.Module, blocks: list[nn.Module], channels: int, act: type[nn.Module]) -> None:
        super().__init__()
        self.stem = stem
        self.layers = nn.Sequential(*blocks)
        self.last = conv_bn(channels, 48, kernel=1, act=act)
        self.classifier = nn.Sequential(nn.Dropout(p=0.2), nn.Linear(48, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        x = self.last(self.layers(self.stem(x)))
        x = x.mean([2, 3])
        return self.classifier(x)


def mobilenet_v2() -> nn.Module:
    """MobileNet V2: inverted residuals with linear bottlenecks and ReLU6."""
    blocks = [InvertedResidual(12, 8, expansion=1), InvertedResidual(8, 12, 2), InvertedResidual(12, 12)]
    return MobileNet(conv_bn(3, 12, act=nn.ReLU6, stride=2), blocks, 12, nn.ReLU6)


def mobilenet_v3() -> nn.Module:
    """MobileNet V3: hardswish, and gates with a hardsigmoid inside the inverted residuals."""
    gate = (nn.ReLU, nn.Hardsigmoid)
    blocks = [
        InvertedResidual(8, 12, 2, act=nn.ReLU),
        InvertedResidual(12, 12, kernel=5, act=nn.Hardswish, gate=gate),
        InvertedResidual(12, 16, 2, 3, kernel=5, act=nn.Hardswish, gate=gate),
    ]
    return MobileNet(conv_bn(3, 8, act=nn.Hardswish, stride=2), blocks, 16, nn.Hardswish)


def mnasnet() -> nn.Module:
    """MNASNet: a separable stem, then inverted residuals of 3x3 and 5x5 kernels with ReLU."""
    stem = nn.Sequential(conv_bn(3, 12, stride=2), conv_bn(12, 12, groups=12), conv_bn(12, 8, kernel=1, act=None))
    blocks = [
        InvertedResidual(8, 10, 2, 3, act=nn.ReLU),
        InvertedResidual(10, 10, 1, 3, 5, act=nn.ReLU),
        InvertedResidual(10, 14, 2, 3, 5, act=nn.ReLU),
    ]
    return MobileNet(stem, blocks, 14, nn.ReLU)


def efficientnet() -> nn.Module:
    """EfficientNet: SiLU, squeeze and excite with a sigmoid, stochastic depth on the residual branches."""
    gate, act = (nn.SiLU, nn.Sigmoid), nn.SiLU
    blocks = [
        InvertedResidual(12, 8, 1, 1, act=act, gate=gate),
        InvertedResidual(8, 12, 2, 4, act=act, gate=gate, drop=0.1),
        InvertedResidual(12, 12, 1, 4, 5, act=act, gate=gate, drop=0.2),
    ]
    return MobileNet(conv_bn(3, 12, act=act, stride=2), blocks, 12, act)


def mcunet() -> nn.Module:
    """MCUNet: inverted residuals of searched kernels 3, 5 and 7 and expansions 3 to 6 on odd channel counts."""
    blocks = [
        InvertedResidual(10, 6, 1, 1, 3),
        InvertedResidual(6, 9, 2, 5, 7),
        InvertedResidual(9, 9, 1, 4, 5),
        InvertedResidual(9, 13, 2, 3, 7),
        InvertedResidual(13, 13, 1, 3, 3),
    ]
    return MobileNet(conv_bn(3, 10, act=nn.ReLU6, stride=2), blocks, 13, nn.ReLU6)


class FusedBlock(nn.Module):
    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv_exp = nn.Conv2d(in_channels, 3 * in_channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(3 * in_channels, eps=1e-3)
        self.conv_pwl = nn.Conv2d(3 * in_channels, channels, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels, eps=1e-3)
        self.has_skip = stride == 1 and in_channels == channels

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv_pwl(F.silu(self.bn1(self.conv_exp(x)), inplace=True)))
        return x + out if self.has_skip else out


class EfficientNetV2(nn.Module):
    """EfficientNet V2: fused inverted residuals, whose expansion is a full 3x3 convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 12, act=nn.SiLU, stride=2)
        self.blocks = nn.Sequential(FusedBlock(12, 12, 1), FusedBlock(12, 16, 2), FusedBlock(16, 16, 1))
        self.head = conv_bn(16, 40, kernel=1, act=nn.SiLU)
        self.classifier = classifier(40)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.head(self.blocks(self.stem(x))))


def pad_same(x: Tensor, kernel: int, stride: int) -> Tensor:
    """TensorFlow's SAME: as many rows and columns as the stride needs, the odd one below and to the right."""
    height, width = x.size()[-2:]
    rows = max((math.ceil(height / stride) - 1) * stride + kernel - height, 0)
    columns = max((math.ceil(width / stride) - 1) * stride + kernel - width, 0)
    return F.pad(x, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2))


class Conv2dSame(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        x = pad_same(x, self.kernel_size[0], self.stride[0])
        return F.conv2d(x, self.weight, self.bias, self.stride, (0, 0), self.dilation, self.groups)


class SamePadding(nn.Module):
    """TensorFlow's SAME padding: asymmetric explicit pads in front of strided convolutions and a max pool."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_stem = Conv2dSame(3, 10, 3, stride=2, bias=False)
        self.bn1 = nn.BatchNorm2d(10, eps=1e-3)
        self.conv_dw = Conv2dSame(10, 10, 5, stride=2, groups=10, bias=False)
        self.bn2 = nn.BatchNorm2d(10, eps=1e-3)
        self.conv_pw = nn.Conv2d(10, 20, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(20, eps=1e-3)
        self.conv_k4 = Conv2dSame(20, 24, 4)
        self.conv_last = Conv2dSame(24, 30, 3, stride=2)
        self.fc = nn.Linear(30, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.bn1(self.conv_stem(x)))
        x = F.silu(self.bn2(self.conv_dw(x)))
        x = self.bn3(self.conv_pw(x))
        x = F.max_pool2d(pad_same(x, 2, 1), 2, 1)
        x = F.silu(self.conv_last(F.silu(self.conv_k4(x))))
        return self.fc(x.mean((2, 3)))


class RegNet(nn.Module):
    """RegNetY: grouped bottlenecks of one width with a gate, the ReLU after the sum."""

    class Block(nn.Module):
        def __init__(self, in_channels: int, width: int, stride: int, group_width: int = 6) -> None:
            super().__init__()
            self.proj = conv_bn(in_channels, width, kernel=1, act=None, stride=stride)
            self.a = conv_bn(in_channels, width, kernel=1)
            self.b = conv_bn(width, width, stride=stride, groups=width // group_width)
            self.se = SqueezeExcitation(width, 5, nn.ReLU, nn.Sigmoid)
            self.c = conv_bn(width, width, kernel=1, act=None)

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(self.proj(x) + self.c(self.se(self.b(self.a(x)))))

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 12, stride=2)
        self.trunk_output = nn.Sequential(self.Block(12, 18, 2), self.Block(18, 30, 2))
        self.fc = nn.Linear(30, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.trunk_output(self.stem(x))
        return self.fc(F.adaptive_avg_pool2d(x, (1, 1)).flatten(start_dim=1))


FAMILY = "mobile"
DEFINITIONS = (
    define("mobilenet_v1", FAMILY, MobileNetV1, ((2, 3, 40, 40),)),
    define("mobilenet_v2", FAMILY, mobilenet_v2),
    define("mobilenet_v3", FAMILY, mobilenet_v3, ((2, 3, 40, 40),)),
    define("mnasnet", FAMILY, mnasnet, ((3, 3, 36, 36),)),
    define("efficientnet", FAMILY, efficientnet),
    define("efficientnet_v2", FAMILY, EfficientNetV2, ((2, 3, 33, 33),)),
    define("mcunet", FAMILY, mcunet, ((2, 3, 44, 52),)),
    define("same_padding", FAMILY, SamePadding, ((2, 3, 45, 50),)),
    define("regnet", FAMILY, RegNet, ((2, 3, 56, 56),)),
)
