"""Parallel linear branches with norms of their own, meant to become one convolution after training."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.models.definitions.blocks import classifier, conv_bn
from tests.models.definitions.definition import define


class RepVGGBlock(nn.Module):
    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        has_identity = stride == 1 and in_channels == channels
        self.identity = nn.BatchNorm2d(in_channels) if has_identity else None
        self.conv_kxk = conv_bn(in_channels, channels, act=None, stride=stride)
        self.conv_1x1 = conv_bn(in_channels, channels, kernel=1, act=None, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv_1x1(x) + self.conv_kxk(x)
        if self.identity is not None:
            out += self.identity(x)
        return F.relu(out)


class RepVGG(nn.Module):
    """RepVGG while training: a 3x3, a 1x1 and an identity branch, each with its batch norm, summed."""

    def __init__(self) -> None:
        super().__init__()
        shapes = ((3, 10, 2), (10, 10, 1), (10, 20, 2), (20, 20, 1))
        self.stages = nn.Sequential(*(RepVGGBlock(*shape) for shape in shapes))
        self.head = classifier(20)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stages(x))


class MobileOneBlock(nn.Module):
    def __init__(self, in_channels: int, channels: int, kernel: int, stride: int, groups: int) -> None:
        super().__init__()
        make = partial(conv_bn, in_channels, channels, act=None, stride=stride, groups=groups)
        self.rbr_skip = nn.BatchNorm2d(in_channels) if stride == 1 and in_channels == channels else None
        self.rbr_conv = nn.ModuleList(make(kernel=kernel) for _ in range(2))
        self.rbr_scale = make(kernel=1) if kernel > 1 else None

    def forward(self, x: Tensor) -> Tensor:
        out = 0
        if self.rbr_skip is not None:
            out = self.rbr_skip(x)
        if self.rbr_scale is not None:
            out = out + self.rbr_scale(x)
        for branch in self.rbr_conv:
            out = out + branch(x)
        return F.relu(out)


class MobileOne(nn.Module):
    """MobileOne while training: over-parameterised depthwise and pointwise blocks of parallel branches."""

    def __init__(self) -> None:
        super().__init__()
        self.stage0 = MobileOneBlock(3, 12, 3, 2, 1)
        self.stage1 = nn.Sequential(MobileOneBlock(12, 12, 3, 2, 12), MobileOneBlock(12, 18, 1, 1, 1))
        self.stage2 = nn.Sequential(MobileOneBlock(18, 18, 3, 1, 18), MobileOneBlock(18, 18, 1, 1, 1))
        self.head = classifier(18)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stage2(self.stage1(self.stage0(x))))


class RepLKNet(nn.Module):
    """RepLKNet: 13x13 depthwise kernels with a parallel 5x5 branch, pointwise around them, residual."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv_bn(3, 14, stride=2), conv_bn(14, 14, groups=14), conv_bn(14, 14, kernel=1))
        self.prelkb_bn = nn.BatchNorm2d(14)
        self.pw1 = conv_bn(14, 14, kernel=1)
        self.lkb_origin = conv_bn(14, 14, kernel=13, act=None, groups=14)
        self.small_conv = conv_bn(14, 14, kernel=5, act=None, groups=14)
        self.pw2 = conv_bn(14, 14, kernel=1, act=None)
        self.head = classifier(14)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        out = self.pw1(self.prelkb_bn(x))
        out = F.relu(self.lkb_origin(out) + self.small_conv(out))
        return self.head(x + self.pw2(out))


class FastViT(nn.Module):
    """FastViT: RepMixer as a scaled difference of two normalised branches, a convolutional feed-forward."""

    class RepMixer(nn.Module):
        def __init__(self, dim: int) -> None:
            super().__init__()
            self.norm = nn.BatchNorm2d(dim)
            self.mixer_skip = nn.BatchNorm2d(dim)
            self.mixer_conv = conv_bn(dim, dim, act=None, groups=dim)
            self.mixer_scale = conv_bn(dim, dim, kernel=1, act=None, groups=dim)
            self.layer_scale = nn.Parameter(torch.rand(dim, 1, 1))

        def forward(self, x: Tensor) -> Tensor:
            mixed = self.mixer_skip(x) + self.mixer_conv(x) + self.mixer_scale(x)
            return x + self.layer_scale * (mixed - self.norm(x))

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv_bn(3, 12, act=nn.GELU, stride=2), conv_bn(12, 12, act=nn.GELU, groups=12))
        self.token_mixer = self.RepMixer(12)
        self.ffn_conv = conv_bn(12, 12, kernel=7, act=None, groups=12)
        self.fc1, self.fc2 = nn.Conv2d(12, 30, 1), nn.Conv2d(30, 12, 1)
        self.head = classifier(12)

    def forward(self, x: Tensor) -> Tensor:
        x = self.token_mixer(self.stem(x))
        return self.head(x + self.fc2(F.gelu(self.fc1(self.ffn_conv(x)))))


FAMILY = "reparameterised"
DEFINITIONS = (
    define("repvgg", FAMILY, RepVGG, ((2, 3, 30, 30),)),
    define("mobileone", FAMILY, MobileOne),
    define("replknet", FAMILY, RepLKNet, ((2, 3, 30, 30),)),
    define("fastvit", FAMILY, FastViT, ((2, 3, 30, 30),)),
)
