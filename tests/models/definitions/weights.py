"""Kernels that are computed: standardised, normalised, mixed for each sample, modulated by a style."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from tests.models.definitions.blocks import CLASSES, classifier, conv_bn
from tests.models.definitions.definition import define


class ScaledStdConv2d(nn.Conv2d):
    """Weights standardised over their fan-in by `F.batch_norm`, times a learnable gain."""

    def __init__(self, in_channels: int, channels: int, kernel: int, gamma: float = 1.7, **options: int) -> None:
        super().__init__(in_channels, channels, kernel, padding=kernel // 2, **options)
        self.gain = nn.Parameter(torch.rand(channels, 1, 1, 1) * 0.4 + 0.8)
        self.scale = gamma * self.weight[0].numel() ** -0.5

    def forward(self, x: Tensor) -> Tensor:
        weight = F.batch_norm(
            self.weight.reshape(1, self.out_channels, -1),
            None,
            None,
            weight=(self.gain * self.scale).view(-1),
            training=True,
            momentum=0.0,
            eps=1e-6,
        ).reshape_as(self.weight)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class NFNet(nn.Module):
    """NFNet: no norm at all, scaled weight standardisation, alpha and beta around each residual branch, skip gain."""

    class Block(nn.Module):
        def __init__(self, in_channels: int, channels: int, stride: int, beta: float) -> None:
            super().__init__()
            self.alpha, self.beta = 0.4, beta
            self.downsample = nn.Sequential(
                nn.AvgPool2d(2, stride, ceil_mode=True, count_include_pad=False) if stride > 1 else nn.Identity(),
                ScaledStdConv2d(in_channels, channels, 1),
            )
            self.conv1 = ScaledStdConv2d(in_channels, 10, 1)
            self.conv2 = ScaledStdConv2d(10, 10, 3, stride=stride, groups=2)
            self.conv3 = ScaledStdConv2d(10, channels, 1)
            self.skipinit_gain = nn.Parameter(torch.tensor(0.7))

        def forward(self, x: Tensor) -> Tensor:
            out = F.silu(x) * self.beta
            shortcut = self.downsample(out)
            out = self.conv2(F.silu(self.conv1(out)))
            out = self.conv3(F.silu(out))
            out = out * self.skipinit_gain
            return out * self.alpha + shortcut

    def __init__(self) -> None:
        super().__init__()
        self.stem = ScaledStdConv2d(3, 12, 3, stride=2)
        self.stages = nn.Sequential(self.Block(12, 18, 2, 1.0), self.Block(18, 18, 1, 0.9))
        self.final_conv = ScaledStdConv2d(18, 30, 1)
        self.fc = nn.Linear(30, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.final_conv(self.stages(self.stem(x))))
        return self.fc(x.mean((2, 3)))


class StdConv2d(nn.Conv2d):
    """Weights standardised by explicit moments, as Big Transfer has it."""

    def forward(self, x: Tensor) -> Tensor:
        w = self.weight
        v, m = torch.var_mean(w, dim=[1, 2, 3], keepdim=True, unbiased=False)
        w = (w - m) / torch.sqrt(v + 1e-10) * (2.0 / w[0].numel()) ** 0.5
        return F.conv2d(x, w, self.bias, self.stride, self.padding, self.dilation, self.groups)


class BigTransfer(nn.Module):
    """Big Transfer: standardised convolutions from `torch.var_mean`, GroupNorm before each, a constant pad."""

    class Block(nn.Module):
        def __init__(self, channels: int, width: int, stride: int) -> None:
            super().__init__()
            self.gn1, self.conv1 = nn.GroupNorm(4, channels), StdConv2d(channels, width, 3, stride, 1, bias=False)
            self.gn2, self.conv2 = nn.GroupNorm(4, width), StdConv2d(width, width, 3, 1, 1, bias=False)
            self.downsample = StdConv2d(channels, width, 1, stride, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            out = F.relu(self.gn1(x))
            residual = self.downsample(out)
            return self.conv2(F.relu(self.gn2(self.conv1(out)))) + residual

    def __init__(self) -> None:
        super().__init__()
        self.root = nn.Sequential(
            StdConv2d(3, 12, 7, 2, 3, bias=False), nn.ConstantPad2d(1, 0.0), nn.MaxPool2d(3, stride=2)
        )
        self.body = nn.Sequential(self.Block(12, 16, 1), self.Block(16, 24, 2))
        self.norm = nn.GroupNorm(4, 24)
        self.head = nn.Conv2d(24, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.body(self.root(x))))
        return self.head(F.adaptive_avg_pool2d(x, 1))[..., 0, 0]


class WeightNorm(nn.Module):
    """Weight norm as a parametrization: every kernel a direction and a length."""

    def __init__(self) -> None:
        super().__init__()
        shapes = ((3, 12, 3, 2), (12, 12, 3, 1), (12, 16, 3, 2), (16, 16, 3, 1), (16, 24, 1, 1))
        layers: list[nn.Module] = []
        for in_channels, channels, kernel, stride in shapes:
            conv = nn.Conv2d(in_channels, channels, kernel, stride, padding=kernel // 2)
            nn.init.kaiming_normal_(conv.weight)
            layers += [weight_norm(conv), nn.ReLU()]
        self.features = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), weight_norm(nn.Linear(24, CLASSES)))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


class SpectralNorm(nn.Module):
    """Spectral norm as a parametrization: kernels divided by their largest singular value, vectors in buffers."""

    def __init__(self) -> None:
        super().__init__()
        shapes = ((3, 12, 4, 2), (12, 16, 3, 1), (16, 16, 3, 1), (16, 20, 4, 2), (20, 24, 3, 1))
        layers: list[nn.Module] = []
        for in_channels, channels, kernel, stride in shapes:
            conv = nn.Conv2d(in_channels, channels, kernel, stride, padding=1)
            nn.init.orthogonal_(conv.weight)
            layers += [spectral_norm(conv, n_power_iterations=5), nn.LeakyReLU(0.2)]
        self.features = nn.Sequential(*layers)
        self.head = classifier(24)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


class LegacyWeightNorm(nn.Module):
    """The older weight_norm: a forward hook that sets the weight from two parameters before each call."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 12, stride=2)
        self.convs = nn.ModuleList()
        for in_channels, channels in ((12, 12), (12, 16), (16, 16), (16, 24)):
            conv = nn.Conv2d(in_channels, channels, 3, padding=1)
            nn.init.kaiming_normal_(conv.weight)
            conv = nn.utils.weight_norm(conv)
            conv.keeps_its_weights = True
            self.convs.append(conv)
        self.head = classifier(24)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for conv in self.convs:
            x = F.relu(conv(x))
        return self.head(x)


class CondConv(nn.Module):
    """CondConv: kernels mixed for each sample by a routing gate, run as one grouped convolution over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 12, stride=2)
        self.conv1 = conv_bn(12, 12)
        self.routing_fn = nn.Linear(12, 3)
        self.experts = nn.Parameter(torch.randn(3, 16 * 12 * 9) * (2 / 108) ** 0.5)
        self.bn = nn.BatchNorm2d(16)
        self.conv2 = conv_bn(16, 20)
        self.conv3 = conv_bn(20, 20, groups=20)
        self.conv4 = conv_bn(20, 24, kernel=1)
        self.head = classifier(24)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(self.stem(x))
        b, c, h, w = x.shape
        routing = torch.sigmoid(self.routing_fn(F.adaptive_avg_pool2d(x, 1).flatten(1)))
        weight = torch.matmul(routing, self.experts).view(b * 16, c, 3, 3)
        x = F.conv2d(x.reshape(1, b * c, h, w), weight, padding=1, groups=b)
        x = F.relu(self.bn(x.view(b, 16, h, w)))
        return self.head(self.conv4(self.conv3(self.conv2(x))))


class StyleConv(nn.Module):
    """StyleGAN 2: kernels modulated by a style and demodulated, one grouped convolution for the whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.mapping = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 16))
        self.constant = nn.Parameter(torch.randn(1, 16, 8, 8))
        self.weight = nn.Parameter(torch.randn(1, 14, 16, 3, 3))
        self.convs = nn.Sequential(conv_bn(14, 14), conv_bn(14, 12), conv_bn(12, 12), conv_bn(12, 10))
        self.to_rgb = nn.Conv2d(10, 3, 1)

    def forward(self, z: Tensor) -> Tensor:
        batch = z.shape[0]
        style = self.mapping(z * torch.rsqrt(torch.mean(z**2, dim=1, keepdim=True) + 1e-8))
        weight = self.weight * (style.view(batch, 1, 16, 1, 1) + 1)
        weight = weight * torch.rsqrt(weight.pow(2).sum([2, 3, 4]) + 1e-8).view(batch, 14, 1, 1, 1)
        x = self.constant.repeat(batch, 1, 1, 1).view(1, batch * 16, 8, 8)
        x = F.conv2d(x, weight.view(batch * 14, 16, 3, 3), padding=1, groups=batch).view(batch, 14, 8, 8)
        x = F.interpolate(F.leaky_relu(x, 0.2) * 2**0.5, scale_factor=2, mode="bilinear", align_corners=False)
        return self.to_rgb(self.convs(x))


FAMILY = "weights"
DEFINITIONS = (
    define("nfnet", FAMILY, NFNet),
    define("big_transfer", FAMILY, BigTransfer, ((2, 3, 48, 48),)),
    define("weight_norm", FAMILY, WeightNorm),
    define("spectral_norm", FAMILY, SpectralNorm),
    define("weight_norm_hook", FAMILY, LegacyWeightNorm),
    define("condconv", FAMILY, CondConv),
    define("style_conv", FAMILY, StyleConv, ((3, 8),), loss="mse"),
)
