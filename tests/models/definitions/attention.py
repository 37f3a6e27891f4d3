"""Attention inside convolutional blocks: gates over channels, pixels and kernels, and non-local context."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.models.definitions.blocks import CLASSES, classifier, conv_bn
from tests.models.definitions.definition import define


class Gated(nn.Module):
    """Two residual blocks, each with `gate(channels)` on its branch, as timm's ResNets take an attention layer."""

    def __init__(self, gate: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.stem = conv_bn(3, 16, stride=2)
        self.conv1 = conv_bn(16, 16)
        self.conv2 = conv_bn(16, 16, act=None)
        self.attn1 = gate(16)
        self.conv3 = conv_bn(16, 24, stride=2)
        self.conv4 = conv_bn(24, 24, act=None)
        self.attn2 = gate(24)
        self.head = classifier(24)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = F.relu(self.attn1(self.conv2(self.conv1(x))) + x)
        x = self.conv3(x)
        x = F.relu(self.attn2(self.conv4(x)) + x)
        return self.head(x)


class SEModule(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(channels, channels // 4)
        self.fc2 = nn.Linear(channels // 4, channels)

    def forward(self, x: Tensor) -> Tensor:
        b, c, _, _ = x.size()
        y = F.adaptive_avg_pool2d(x, 1).view(b, c)
        y = torch.sigmoid(self.fc2(F.relu(self.fc1(y)))).view(b, c, 1, 1)
        return x * y.expand_as(x)


def senet() -> nn.Module:
    """SENet: squeeze and excite of linear layers, the gate viewed and expanded over the map."""
    return Gated(SEModule)


class EfficientChannel(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 1, kernel_size=3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = x.mean((2, 3)).view(x.shape[0], 1, -1)
        y = self.conv(y).view(x.shape[0], -1, 1, 1).sigmoid()
        return x * y.expand_as(x)


def ecanet() -> nn.Module:
    """ECA-Net: a channel gate from a 1-D convolution along the channel axis."""
    return Gated(EfficientChannel)


class Cbam(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.fc1 = nn.Conv2d(channels, channels // 4, 1, bias=False)
        self.fc2 = nn.Conv2d(channels // 4, channels, 1, bias=False)
        self.conv = conv_bn(2, 1, kernel=7, act=None)

    def forward(self, x: Tensor) -> Tensor:
        average = self.fc2(F.relu(self.fc1(x.mean((2, 3), keepdim=True))))
        largest = self.fc2(F.relu(self.fc1(x.amax((2, 3), keepdim=True))))
        x = x * torch.sigmoid(average + largest)
        spatial = torch.cat([x.mean(dim=1, keepdim=True), x.amax(dim=1, keepdim=True)], dim=1)
        return x * torch.sigmoid(self.conv(spatial))


def cbam() -> nn.Module:
    """CBAM: one shared MLP over mean and max pools, then a spatial gate from channel mean and max."""
    return Gated(Cbam)


class BottleneckGate(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channel = nn.Sequential(nn.Linear(channels, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, channels))
        self.spatial = nn.Sequential(
            conv_bn(channels, 6, kernel=1), conv_bn(6, 6, dilation=4), nn.Conv2d(6, 1, kernel_size=1)
        )

    def forward(self, x: Tensor) -> Tensor:
        pooled = F.avg_pool2d(x, x.size(2), stride=x.size(2)).flatten(1)
        channel = self.channel(pooled).unsqueeze(2).unsqueeze(3).expand_as(x)
        largest, _ = torch.max(x, 1)
        spatial = self.spatial(x) + 0.1 * largest.unsqueeze(1)
        return x * (1 + torch.sigmoid(channel * spatial.expand_as(x)))


def bam() -> nn.Module:
    """BAM: a dilated spatial gate times a channel gate with BatchNorm1d, `torch.max` over the channels with indices."""
    return Gated(BottleneckGate)


class Coordinate(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 8, 1)
        self.bn1 = nn.BatchNorm2d(8)
        self.act = nn.Hardswish()
        self.conv_h = nn.Conv2d(8, channels, 1)
        self.conv_w = nn.Conv2d(8, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        _, _, h, w = x.size()
        x_h = x.mean(3, keepdim=True)
        x_w = x.mean(2, keepdim=True).permute(0, 1, 3, 2)
        y = self.act(self.bn1(self.conv1(torch.cat([x_h, x_w], dim=2))))
        x_h, x_w = torch.split(y, [h, w], dim=2)
        a_h = self.conv_h(x_h).sigmoid()
        a_w = self.conv_w(x_w.permute(0, 1, 3, 2)).sigmoid()
        return x * a_w * a_h


def coordinate_attention() -> nn.Module:
    """Coordinate attention: row and column means joined, mixed, split again and multiplied in."""
    return Gated(Coordinate)


class GlobalContext(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv_attn = nn.Conv2d(channels, 1, kernel_size=1, bias=False)  # a softmax forgets a bias
        self.fc1 = nn.Conv2d(channels, 8, 1)
        self.norm = nn.LayerNorm([8, 1, 1])
        self.fc2 = nn.Conv2d(8, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        attn = self.conv_attn(x).reshape(b, 1, h * w)
        attn = F.softmax(attn, dim=-1).unsqueeze(3)  # [B, 1, HW, 1]
        context = x.reshape(b, c, h * w).unsqueeze(1)
        context = torch.matmul(context, attn).view(b, c, 1, 1)
        return x + self.fc2(F.relu(self.norm(self.fc1(context))))


def gcnet() -> nn.Module:
    """GCNet: a softmax over pixels pools a context vector, transformed and added to every pixel."""
    return Gated(GlobalContext)


class NonLocal(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.t = nn.Conv2d(channels, 6, kernel_size=1)
        self.p = nn.Conv2d(channels, 6, kernel_size=1, bias=False)  # a softmax forgets a key's bias
        self.g = nn.Conv2d(channels, 6, kernel_size=1)
        self.z = nn.Conv2d(6, channels, kernel_size=1)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        b, _, h, w = x.size()
        theta = self.t(x).view(b, 6, -1).transpose(2, 1)
        phi = self.pool(self.p(x)).view(b, 6, -1)
        g = self.pool(self.g(x)).view(b, 6, -1).transpose(2, 1)
        attn = torch.bmm(theta, phi).softmax(dim=2)
        out = torch.bmm(attn, g).transpose(2, 1).reshape(b, 6, h, w)
        return self.z(out) + x


def nonlocal_net() -> nn.Module:
    """Non-local block: embedded Gaussian attention over pixels by `bmm`, keys and values max pooled."""
    return Gated(NonLocal)


class GatherExcite(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gather = conv_bn(channels, channels, act=None, stride=2, groups=channels)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gather(x)
        gate = F.interpolate(gate, size=x.shape[-2:])
        return x * gate.sigmoid()


def gather_excite() -> nn.Module:
    """Gather-excite: a strided depthwise gather, resized by the default nearest and sigmoided."""
    return Gated(GatherExcite)


class SplitAttention(nn.Module):
    def __init__(self, channels: int, groups: int = 2, radix: int = 2) -> None:
        super().__init__()
        self.groups, self.radix = groups, radix
        self.conv = nn.Conv2d(channels, channels * radix, 3, padding=1, groups=groups * radix, bias=False)
        self.bn0 = nn.BatchNorm2d(channels * radix)
        self.fc1 = nn.Conv2d(channels, 8, 1, groups=groups)
        self.bn1 = nn.BatchNorm2d(8)
        self.fc2 = nn.Conv2d(8, channels * radix, 1, groups=groups)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn0(self.conv(x)))
        b, rc, h, w = x.shape
        x = x.reshape((b, self.radix, rc // self.radix, h, w))
        gap = x.sum(dim=1).mean((2, 3), keepdim=True)
        attn = self.fc2(F.relu(self.bn1(self.fc1(gap))))
        attn = attn.view(b, self.groups, self.radix, -1).transpose(1, 2)
        attn = F.softmax(attn, dim=1).reshape(b, -1).view(b, self.radix, rc // self.radix, 1, 1)
        return (x * attn).sum(dim=1).contiguous()


class ResNeSt(nn.Module):
    """ResNeSt: split attention, a softmax over the radix of a grouped convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 20, stride=2)
        self.conv1 = conv_bn(20, 12, kernel=1)
        self.conv2 = SplitAttention(12)
        self.avd_last = nn.AvgPool2d(3, 2, padding=1)
        self.conv3 = conv_bn(12, 20, kernel=1, act=None)
        self.downsample = nn.Sequential(nn.AvgPool2d(2, 2), *conv_bn(20, 20, kernel=1, act=None))
        self.head = classifier(20)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        out = self.conv3(self.avd_last(self.conv2(self.conv1(x))))
        return self.head(F.relu(out + self.downsample(x)))


class SelectiveKernel(nn.Module):
    """SKNet: two dilations stacked, a softmax over the paths from their pooled sum, weighted and summed."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 16, stride=2)
        self.paths = nn.ModuleList(conv_bn(16, 16, dilation=d, groups=4) for d in (1, 2))
        self.fc_reduce = nn.Conv2d(16, 8, 1, bias=False)
        self.bn = nn.BatchNorm2d(8)
        self.fc_select = nn.Conv2d(8, 32, 1, bias=False)
        self.last = conv_bn(16, 24, kernel=1)
        self.head = classifier(24)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = torch.stack([path(x) for path in self.paths], dim=1)  # [B, paths, C, H, W]
        attn = x.sum(1).mean((2, 3), keepdim=True)
        attn = self.fc_select(F.relu(self.bn(self.fc_reduce(attn))))
        attn = torch.softmax(attn.view(x.shape[0], 2, 16, 1, 1), dim=1)
        return self.head(self.last(torch.sum(x * attn, dim=1)))


class Involution(nn.Module):
    """Involution: kernels made from each pixel, multiplied with `F.unfold` patches and summed."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 16, stride=2)
        self.entry = conv_bn(16, 16, kernel=1)
        self.reduce = conv_bn(16, 8, kernel=1)
        self.span = nn.Conv2d(8, 9 * 4, 1)
        self.last = conv_bn(16, 24, stride=2)
        self.fc = nn.Linear(24, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.entry(self.stem(x))
        b, c, h, w = x.shape
        kernel = self.span(self.reduce(x)).view(b, 4, 9, h, w).unsqueeze(2)
        patches = F.unfold(x, kernel_size=3, padding=1).view(b, 4, c // 4, 9, h, w)
        out = (kernel * patches).sum(dim=3).view(b, c, h, w)
        return self.fc(self.last(0.4 * out + x).mean(dim=(2, 3)))


FAMILY = "attention"
DEFINITIONS = (
    define("senet", FAMILY, senet),
    define("ecanet", FAMILY, ecanet, ((2, 3, 30, 30),)),
    define("cbam", FAMILY, cbam),
    define("bam", FAMILY, bam, ((3, 3, 32, 32),)),
    define("coordinate_attention", FAMILY, coordinate_attention, ((2, 3, 36, 28),)),
    define("gcnet", FAMILY, gcnet),
    define("nonlocal", FAMILY, nonlocal_net),
    define("gather_excite", FAMILY, gather_excite),
    define("resnest", FAMILY, ResNeSt, ((2, 3, 32, 32),)),
    define("selective_kernel", FAMILY, SelectiveKernel),
    define("involution", FAMILY, Involution, ((2, 3, 28, 28),)),
)
