"""Every way to pool: windows with all their options, uneven adaptive cells, and pools over the whole map."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.models.definitions.blocks import CLASSES, classifier, conv_bn
from tests.models.definitions.definition import define


class MaxPools(nn.Module):
    """Max pools with dilation, ceil mode, padding, overlap and a window that is not square."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = conv_bn(3, 12)
        self.pool1 = nn.MaxPool2d(3, stride=2, padding=1, ceil_mode=True)
        self.conv2 = conv_bn(12, 14)
        self.pool2 = nn.MaxPool2d(3, stride=1, padding=1, dilation=2)
        self.conv3 = conv_bn(14, 18)
        self.pool3 = nn.MaxPool2d((2, 3), stride=(2, 1), ceil_mode=True)
        self.conv4 = conv_bn(18, 18)
        self.conv5 = conv_bn(18, 21)
        self.head = classifier(21)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool1(self.conv1(x))
        x = self.pool2(self.conv2(x))
        x = self.pool3(self.conv3(x))
        return self.head(self.conv5(F.max_pool2d(self.conv4(x), 3, stride=1, padding=1)))


class AveragePools(nn.Module):
    """Average pools with ceil mode, without the padding in the count, and with a divisor of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = conv_bn(3, 12)
        self.pool1 = nn.AvgPool2d(3, stride=2, padding=1, ceil_mode=True)
        self.conv2 = conv_bn(12, 14)
        self.pool2 = nn.AvgPool2d(3, stride=2, padding=1, ceil_mode=True, count_include_pad=False)
        self.conv3 = conv_bn(14, 18)
        self.pool3 = nn.AvgPool2d((2, 3), stride=(1, 2), divisor_override=5)
        self.conv4 = conv_bn(18, 18)
        self.conv5 = conv_bn(18, 21)
        self.head = classifier(21)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool1(self.conv1(x))
        x = self.pool2(self.conv2(x))
        x = self.pool3(self.conv3(x))
        return self.head(self.conv5(F.avg_pool2d(self.conv4(x), 2, stride=1)))


class AdaptivePools(nn.Module):
    """Adaptive average and max pools to sizes that do not divide the map, one side left as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = conv_bn(3, 12, stride=2)
        self.pool1 = nn.AdaptiveAvgPool2d((11, 9))
        self.conv2 = conv_bn(12, 16)
        self.pool2 = nn.AdaptiveMaxPool2d((7, 5))
        self.conv3 = conv_bn(16, 20)
        self.pool3 = nn.AdaptiveAvgPool2d((None, 3))
        self.conv4 = conv_bn(20, 20)
        self.conv5 = nn.Conv2d(20, 14, 1)
        self.fc = nn.Linear(14 * 6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool1(self.conv1(x))
        x = self.pool2(self.conv2(x))
        x = self.conv5(self.conv4(self.pool3(self.conv3(x))))
        return self.fc(F.adaptive_max_pool2d(x, (3, 2)).flatten(1))


class PowerPools(nn.Module):
    """LPPool of orders 2 and 3, with and without ceil mode."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = conv_bn(3, 12, act=nn.Softplus, stride=2)
        self.conv2 = conv_bn(12, 14, act=nn.Softplus)
        self.pool2 = nn.LPPool2d(2, kernel_size=2)
        self.conv3 = conv_bn(14, 18, act=nn.Softplus)
        self.conv4 = conv_bn(18, 18, act=nn.Softplus)
        self.pool4 = nn.LPPool2d(3, kernel_size=3, stride=2, ceil_mode=True)
        self.conv5 = nn.Conv2d(18, 20, 1)
        self.head = classifier(20)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool2(self.conv2(self.conv1(x)))
        return self.head(self.conv5(self.pool4(self.conv4(self.conv3(x)))))


class Pooled(nn.Module):
    """Five convolutions, and whatever `pool` makes of the last map."""

    def __init__(self, pool: nn.Module | Callable[[Tensor], Tensor], features: int, act: type[nn.Module]) -> None:
        super().__init__()
        self.features = nn.Sequential(
            conv_bn(3, 12, stride=2),
            conv_bn(12, 16),
            conv_bn(16, 20, stride=2),
            conv_bn(20, 20),
            conv_bn(20, 24, act=act),
        )
        self.pool = pool
        self.fc = nn.Linear(features, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.pool(self.features(x)))


class GeM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.tensor([2.5]))

    def forward(self, x: Tensor) -> Tensor:
        x = x.clamp(min=1e-2).pow(self.p)
        return F.avg_pool2d(x, (x.size(-2), x.size(-1))).pow(1.0 / self.p).flatten(1)


def gem_pooling() -> nn.Module:
    """GeM: clamp, a power that is learnt, an average pool over the map, the root."""
    return Pooled(GeM(), 24, nn.Softplus)


def moment_pooling() -> nn.Module:
    """Mean and standard deviation of each channel, joined."""
    return Pooled(lambda x: torch.cat([x.mean((2, 3)), x.flatten(2).std(dim=2)], dim=1), 48, nn.ReLU)


def mixed_pooling() -> nn.Module:
    """Global average and max pools, averaged and joined, as timm's catavgmax and avgmax."""

    def pool(x: Tensor) -> Tensor:
        average, largest = F.adaptive_avg_pool2d(x, 1), F.adaptive_max_pool2d(x, 1)
        return torch.cat((0.5 * (average + largest), largest), 1).flatten(1)

    return Pooled(pool, 48, nn.Identity)


def global_max_pooling() -> nn.Module:
    """Global max by `amax`, min by `amin`, and `max` over a flattened map."""

    def pool(x: Tensor) -> Tensor:
        return torch.cat([x.amax((2, 3)), x.amin(dim=(-2, -1)), x.flatten(2).max(dim=-1).values.neg()], 1)

    return Pooled(pool, 72, nn.Identity)


def log_sum_exp_pooling() -> nn.Module:
    """LogSumExp over the map, minus the logarithm of its size."""
    return Pooled(lambda x: torch.logsumexp(x, dim=(2, 3)) - float(x.shape[2] * x.shape[3]) ** 0.1, 24, nn.Identity)


class SoftPool(nn.Module):
    """SoftPool: windows weighted by their exponentials, a ratio of two average pools."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = conv_bn(3, 12)
        self.conv2 = conv_bn(12, 14, act=None)
        self.conv3 = conv_bn(14, 18)
        self.conv4 = conv_bn(18, 18, act=None)
        self.conv5 = conv_bn(18, 21)
        self.head = classifier(21)

    def forward(self, x: Tensor) -> Tensor:
        x = self._pool(self.conv2(self.conv1(x)))
        return self.head(self.conv5(self._pool(self.conv4(self.conv3(x)))))

    @staticmethod
    def _pool(x: Tensor) -> Tensor:
        weights = torch.exp(x)
        return F.avg_pool2d(x * weights, 2).div(F.avg_pool2d(weights, 2))


class AttentionPool(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.attention = nn.Conv2d(channels, 1, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        weights = torch.softmax(self.attention(x).flatten(2), dim=-1)
        return (x.flatten(2) * weights).sum(dim=-1)


def attention_pooling() -> nn.Module:
    """A softmax over the pixels of a 1x1 convolution weights the mean."""
    return Pooled(AttentionPool(24), 24, nn.ReLU)


class BilinearPool(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(channels, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.reduce(x).flatten(2)
        y = torch.bmm(x, x.transpose(1, 2)) / x.size(2)
        y = y.flatten(1)
        y = torch.sign(y) * torch.sqrt(torch.abs(y) + 1e-2)
        return F.normalize(y) * 8


def bilinear_pooling() -> nn.Module:
    """Bilinear pooling: outer products of channels, signed square root, normalised."""
    return Pooled(BilinearPool(24), 64, nn.ReLU)


class VladPool(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.assign = nn.Conv2d(channels, 3, 1, bias=False)
        self.centroids = nn.Parameter(torch.randn(3, channels) * 0.5)

    def forward(self, x: Tensor) -> Tensor:
        n, c = x.shape[:2]
        x = F.normalize(x, p=2, dim=1)
        soft = F.softmax(self.assign(x).view(n, 3, -1), dim=1)
        x_flat = x.view(n, c, -1)
        residual = x_flat.expand(3, -1, -1, -1).permute(1, 0, 2, 3) - self.centroids.expand(
            x_flat.size(-1), -1, -1
        ).permute(1, 2, 0).unsqueeze(0)
        residual = residual * soft.unsqueeze(2)
        vlad = F.normalize(residual.sum(dim=-1), p=2, dim=2)
        return F.normalize(vlad.view(n, -1), p=2, dim=1) * 8


def netvlad() -> nn.Module:
    """NetVLAD: soft assignment of pixels to clusters, residuals summed, normalised twice."""
    return Pooled(VladPool(24), 72, nn.ReLU)


class PyramidPool(nn.Module):
    """Spatial pyramid pooling: one vector from max pools of 1, 2 and 3 cells, then a max pool of mixed windows."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = conv_bn(3, 12, stride=2)
        self.conv2 = conv_bn(12, 14)
        self.conv3 = conv_bn(14, 10, kernel=1)
        self.pools = nn.ModuleList(nn.MaxPool2d(size, stride=1, padding=size // 2) for size in (3, 5, 9))
        self.conv4 = conv_bn(40, 18, kernel=1)
        self.conv5 = conv_bn(18, 18)
        self.fc = nn.Linear(18 * 14, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv3(self.conv2(self.conv1(x)))
        x = self.conv4(torch.cat([x] + [pool(x) for pool in self.pools], 1))
        x = self.conv5(x)
        cells = [F.adaptive_max_pool2d(x, size).reshape(x.size(0), -1) for size in (1, 2, 3)]
        return self.fc(torch.cat(cells, dim=1))


FAMILY = "pooling"
DEFINITIONS = (
    define("max_pools", FAMILY, MaxPools, ((2, 3, 30, 33),)),
    define("average_pools", FAMILY, AveragePools, ((2, 3, 30, 33),)),
    define("adaptive_pools", FAMILY, AdaptivePools, ((2, 3, 34, 30),)),
    define("power_pools", FAMILY, PowerPools),
    define("gem_pooling", FAMILY, gem_pooling),
    define("moment_pooling", FAMILY, moment_pooling, ((2, 3, 30, 30),)),
    define("mixed_pooling", FAMILY, mixed_pooling),
    define("global_max_pooling", FAMILY, global_max_pooling),
    define("log_sum_exp_pooling", FAMILY, log_sum_exp_pooling),
    define("soft_pool", FAMILY, SoftPool),
    define("attention_pooling", FAMILY, attention_pooling),
    define("bilinear_pooling", FAMILY, bilinear_pooling),
    define("netvlad", FAMILY, netvlad),
    define("pyramid_pooling", FAMILY, PyramidPool, ((2, 3, 32, 32),)),
)
