"""Channels cut apart and put together: shuffled, sliced, split unevenly, one half passed by."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.models.definitions.blocks import CLASSES, classifier, conv_bn
from tests.models.definitions.definition import define


def channel_shuffle(x: Tensor, groups: int) -> Tensor:
    batch, channels, height, width = x.size()
    x = x.view(batch, groups, channels // groups, height, width)
    x = torch.transpose(x, 1, 2).contiguous()
    return x.view(batch, channels, height, width)


class ShuffleUnit(nn.Module):
    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        half = channels // 2
        entering = half if stride == 1 else in_channels
        if stride > 1:
            self.branch1 = nn.Sequential(
                conv_bn(in_channels, in_channels, act=None, stride=stride, groups=in_channels),
                conv_bn(in_channels, half, kernel=1),
            )
        self.branch2 = nn.Sequential(
            conv_bn(entering, half, kernel=1),
            conv_bn(half, half, act=None, stride=stride, groups=half),
            conv_bn(half, half, kernel=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        if self.stride == 1:
            x1, x2 = x.chunk(2, dim=1)
            out = torch.cat((x1, self.branch2(x2)), dim=1)
        else:
            out = torch.cat((self.branch1(x), self.branch2(x)), dim=1)
        return channel_shuffle(out, 2)


class ShuffleNetV2(nn.Module):
    """ShuffleNet V2: half the channels pass by, `chunk`, `cat` and a channel shuffle by view and transpose."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = conv_bn(3, 12, stride=2)
        self.stage2 = nn.Sequential(ShuffleUnit(12, 20, 2), ShuffleUnit(20, 20, 1))
        self.stage3 = nn.Sequential(ShuffleUnit(20, 28, 2), ShuffleUnit(28, 28, 1))
        self.fc = nn.Linear(28, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stage3(self.stage2(self.conv1(x)))
        return self.fc(x.mean([2, 3]))


class ShuffleNetV1(nn.Module):
    """ShuffleNet V1: grouped pointwise convolutions around `nn.ChannelShuffle`, an average-pooled shortcut joined."""

    class Unit(nn.Module):
        def __init__(self, in_channels: int, channels: int, stride: int, groups: int = 3) -> None:
            super().__init__()
            grown = channels - in_channels if stride > 1 else channels
            self.compress = conv_bn(in_channels, 12, kernel=1, groups=groups)
            self.shuffle = nn.ChannelShuffle(groups)
            self.depthwise = conv_bn(12, 12, act=None, stride=stride, groups=12)
            self.expand = conv_bn(12, grown, kernel=1, act=None, groups=groups)
            self.stride = stride

        def forward(self, x: Tensor) -> Tensor:
            out = self.expand(self.depthwise(self.shuffle(self.compress(x))))
            if self.stride > 1:
                return F.relu(torch.cat((F.avg_pool2d(x, 3, 2, 1), out), 1))
            return F.relu(x + out)

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 12, stride=2)
        self.units = nn.Sequential(self.Unit(12, 24, 2), self.Unit(24, 24, 1), self.Unit(24, 36, 2))
        self.head = classifier(36)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.units(self.stem(x)))


class GhostModule(nn.Module):
    def __init__(self, in_channels: int, channels: int, act: type[nn.Module]) -> None:
        super().__init__()
        self.channels = channels
        primary = math.ceil(channels / 2)
        self.primary_conv = conv_bn(in_channels, primary, kernel=1, act=act)
        self.cheap_operation = conv_bn(primary, primary, act=act, groups=primary)

    def forward(self, x: Tensor) -> Tensor:
        x1 = self.primary_conv(x)
        x2 = self.cheap_operation(x1)
        return torch.cat([x1, x2], dim=1)[:, : self.channels, :, :]


class GhostNet(nn.Module):
    """GhostNet: half the features from a cheap depthwise convolution, concatenated and sliced to an odd count."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_stem = conv_bn(3, 12, stride=2)
        self.ghost1 = GhostModule(12, 27, nn.ReLU)
        self.conv_dw = conv_bn(27, 27, act=None, stride=2, groups=27)
        self.ghost2 = GhostModule(27, 15, nn.Identity)
        self.shortcut = nn.Sequential(
            conv_bn(12, 12, act=None, stride=2, groups=12), conv_bn(12, 15, kernel=1, act=None)
        )
        self.ghost3 = GhostModule(15, 31, nn.ReLU)
        self.conv_head = nn.Conv2d(31, 40, 1)
        self.classifier = nn.Linear(40, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv_stem(x)
        x = self.ghost2(self.conv_dw(self.ghost1(x))) + self.shortcut(x)
        x = F.adaptive_avg_pool2d(self.ghost3(x), 1)
        x = F.relu(self.conv_head(x))
        return self.classifier(x.flatten(1))


class MixedConv(nn.ModuleDict):
    def __init__(self, channels: int, kernels: tuple[int, ...]) -> None:
        super().__init__()
        self.splits = [channels - (len(kernels) - 1) * (channels // len(kernels))]
        self.splits += [channels // len(kernels)] * (len(kernels) - 1)
        for index, (kernel, width) in enumerate(zip(kernels, self.splits)):
            self.add_module(str(index), nn.Conv2d(width, width, kernel, padding=kernel // 2, groups=width, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        parts = torch.split(x, self.splits, 1)
        return torch.cat([conv(part) for conv, part in zip(self.values(), parts)], 1)


class MixNet(nn.Module):
    """MixNet: depthwise kernels of several sizes over an uneven split of the channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 10, stride=2)
        self.expand = conv_bn(10, 23, kernel=1, act=nn.SiLU)
        self.mixed = nn.Sequential(MixedConv(23, (3, 5, 7)), nn.BatchNorm2d(23), nn.SiLU())
        self.project = conv_bn(23, 16, kernel=1, act=None, stride=2)
        self.last = conv_bn(16, 32, kernel=1, act=nn.SiLU)
        self.head = classifier(32)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.last(self.project(self.mixed(self.expand(self.stem(x))))))


class Res2Net(nn.Module):
    """Res2Net: the channels split by scale, each 3x3 convolution adding what the one before it made."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 16, stride=2)
        self.conv1 = conv_bn(16, 28, kernel=1)
        self.convs = nn.ModuleList(nn.Conv2d(7, 7, 3, padding=1, bias=False) for _ in range(3))
        self.bns = nn.ModuleList(nn.BatchNorm2d(7) for _ in range(3))
        self.conv3 = conv_bn(28, 16, kernel=1, act=None)
        self.head = classifier(16)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = self.stem(x)
        spx = torch.split(self.conv1(shortcut), 7, 1)
        sp, spo = spx[0], []
        for i, (conv, bn) in enumerate(zip(self.convs, self.bns)):
            sp = spx[i] if i == 0 else sp + spx[i]
            sp = F.relu(bn(conv(sp)))
            spo.append(sp)
        spo.append(spx[3])
        return self.head(F.relu(self.conv3(torch.cat(spo, 1)) + shortcut))


class DualPath(nn.Module):
    """Dual path network: one half of a block's output is added to the residual path, the other joins the dense one."""

    class Block(nn.Module):
        def __init__(self, in_channels: int, residual: int, grown: int) -> None:
            super().__init__()
            self.residual = residual
            self.c1x1_a = conv_bn(in_channels, 15, kernel=1)
            self.c3x3_b = conv_bn(15, 15, groups=5)
            self.c1x1_c = nn.Conv2d(15, residual + grown, 1, bias=False)

        def forward(self, x: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            out = self.c1x1_c(self.c3x3_b(self.c1x1_a(torch.cat(x, dim=1))))
            resid = x[0] + out[:, : self.residual, :, :]
            dense = torch.cat([x[1], out[:, self.residual :, :, :]], dim=1)
            return resid, dense

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 17, stride=2)
        self.blocks = nn.Sequential(self.Block(17, 12, 4), self.Block(21, 12, 4))
        self.norm = nn.BatchNorm2d(25)
        self.classifier = nn.Conv2d(25, CLASSES, kernel_size=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = self.blocks((x[:, :12], x[:, 12:]))
        x = F.elu(self.norm(torch.cat(x, dim=1)))
        return self.classifier(F.adaptive_avg_pool2d(x, 1)).flatten(1)


class OctaveConv(nn.Module):
    """Octave convolution: a fine and a coarse half of the channels that exchange through pools and nearest."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 16, stride=2)
        self.h2h = nn.Conv2d(10, 12, 3, padding=1, bias=False)
        self.h2l = nn.Conv2d(10, 8, 3, padding=1, bias=False)
        self.l2h = nn.Conv2d(6, 12, 3, padding=1, bias=False)
        self.l2l = nn.Conv2d(6, 8, 3, padding=1, bias=False)
        self.bn_h, self.bn_l = nn.BatchNorm2d(12), nn.BatchNorm2d(8)
        self.last = conv_bn(20, 24, kernel=1)
        self.head = classifier(24)

    def forward(self, x: Tensor) -> Tensor:
        high, low = self.stem(x).split((10, 6), dim=1)
        low = F.avg_pool2d(low, 2)
        h = self.h2h(high) + F.interpolate(self.l2h(low), scale_factor=2, mode="nearest")
        w = self.l2l(low) + self.h2l(F.avg_pool2d(high, 2))
        h, w = F.relu(self.bn_h(h)), F.relu(self.bn_l(w))
        return self.head(self.last(torch.cat([F.avg_pool2d(h, 2), w], 1)))


FAMILY = "channels"
DEFINITIONS = (
    define("shufflenet_v2", FAMILY, ShuffleNetV2),
    define("shufflenet_v1", FAMILY, ShuffleNetV1, ((2, 3, 30, 30),)),
    define("ghostnet", FAMILY, GhostNet),
    define("mixnet", FAMILY, MixNet, ((2, 3, 33, 33),)),
    define("res2net", FAMILY, Res2Net, ((2, 3, 30, 34),)),
    define("dual_path", FAMILY, DualPath),
    define("octave", FAMILY, OctaveConv),
)
