"""Every way to normalise activations and weights that a CNN is seen to use."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.models.definitions.blocks import classifier
from tests.models.definitions.definition import define


class Normalised(nn.Module):
    """Six convolutions, each but the first followed by `norm(channels)` and a ReLU; one residual sum."""

    def __init__(self, norm: Callable[[int], nn.Module], widths: tuple[int, int] = (12, 20)) -> None:
        super().__init__()
        first, second = widths
        self.stem = nn.Conv2d(3, first, 3, stride=2, padding=1, bias=False)
        self.norm0 = norm(first)
        self.conv1 = nn.Conv2d(first, first, 3, padding=1, bias=False)
        self.norm1 = norm(first)
        self.conv2 = nn.Conv2d(first, second, 3, stride=2, padding=1, bias=False)
        self.norm2 = norm(second)
        self.conv3 = nn.Conv2d(second, second, 3, padding=1, groups=second, bias=False)
        self.norm3 = norm(second)
        self.conv4 = nn.Conv2d(second, second, 1, bias=False)
        self.norm4 = norm(second)
        self.conv5 = nn.Conv2d(second, 28, 3, padding=1)
        self.head = classifier(28)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm0(self.stem(x)))
        x = F.relu(self.norm1(self.conv1(x)) + x)
        x = F.relu(self.norm2(self.conv2(x)))
        x = x + self.norm4(self.conv4(F.relu(self.norm3(self.conv3(x)))))
        return self.head(F.relu(self.conv5(x)))


def group_norm() -> nn.Module:
    """GroupNorm of four groups."""
    return Normalised(lambda channels: nn.GroupNorm(4, channels))


def instance_norm() -> nn.Module:
    """InstanceNorm without parameters and without statistics."""
    return Normalised(nn.InstanceNorm2d)


def instance_norm_affine() -> nn.Module:
    """InstanceNorm with affine parameters."""
    return Normalised(lambda channels: nn.InstanceNorm2d(channels, affine=True, eps=1e-4))


def instance_norm_running() -> nn.Module:
    """InstanceNorm that tracks running statistics, used in eval mode like a batch norm."""
    return Normalised(lambda channels: nn.InstanceNorm2d(channels, affine=True, track_running_stats=True))


def batch_norm_plain() -> nn.Module:
    """BatchNorm without affine parameters, its momentum a cumulative average."""
    return Normalised(lambda channels: nn.BatchNorm2d(channels, affine=False, momentum=None))


def batch_norm_untracked() -> nn.Module:
    """BatchNorm that keeps no statistics: those of the batch even in eval mode."""
    return Normalised(lambda channels: nn.BatchNorm2d(channels, track_running_stats=False))


class FrozenBatchNorm2d(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.rand(channels) * 0.4 + 0.8)
        self.register_buffer("bias", torch.randn(channels) * 0.1)
        self.register_buffer("running_mean", torch.randn(channels) * 0.1)
        self.register_buffer("running_var", torch.rand(channels) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        w = self.weight.reshape(1, -1, 1, 1)
        b = self.bias.reshape(1, -1, 1, 1)
        rv = self.running_var.reshape(1, -1, 1, 1)
        rm = self.running_mean.reshape(1, -1, 1, 1)
        scale = w * (rv + 1e-5).rsqrt()
        return x * scale + (b - rm * scale)


def frozen_batch_norm() -> nn.Module:
    """FrozenBatchNorm2d: a batch norm written out over four buffers, as in detection backbones."""
    return Normalised(FrozenBatchNorm2d)


class ChannelRMSNorm(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(channels) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        v = x.pow(2).mean(dim=1, keepdim=True)
        return x * torch.rsqrt(v + 1e-6) * self.weight.view(1, -1, 1, 1)


def rms_norm() -> nn.Module:
    """RMSNorm over the channels of a map."""
    return Normalised(ChannelRMSNorm)


class FilterResponseNorm(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(channels) * 0.4 + 0.8)
        self.bias = nn.Parameter(torch.randn(channels) * 0.1)
        self.tau = nn.Parameter(torch.randn(channels) * 0.1 - 0.2)

    def forward(self, x: Tensor) -> Tensor:
        x = x * x.square().mean(dim=(2, 3), keepdim=True).add(1e-6).rsqrt()
        x = x * self.weight.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)
        return torch.maximum(x, self.tau.view(1, -1, 1, 1))


def filter_response_norm() -> nn.Module:
    """Filter response norm with its thresholded linear unit, `torch.maximum` with a parameter."""
    return Normalised(FilterResponseNorm)


class EvoNormS0(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(channels) * 0.4 + 0.8)
        self.bias = nn.Parameter(torch.randn(channels) * 0.1)
        self.v = nn.Parameter(torch.rand(channels) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        shape = (1, -1, 1, 1)
        b, c, h, w = x.shape
        std = x.reshape(b, 4, c // 4, h, w).var(dim=(2, 3, 4), unbiased=False, keepdim=True).add(1e-5).sqrt()
        std = std.expand(b, 4, c // 4, h, w).reshape(b, c, h, w)
        x = x * (x * self.v.view(shape)).sigmoid() / std
        return x * self.weight.view(shape) + self.bias.view(shape)


def evo_norm() -> nn.Module:
    """EvoNorm S0: a gated activation divided by the group's standard deviation."""
    return Normalised(EvoNormS0)


class InstanceBatchNorm(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.half = channels // 2
        self.instance = nn.InstanceNorm2d(self.half, affine=True)
        self.batch = nn.BatchNorm2d(channels - self.half)

    def forward(self, x: Tensor) -> Tensor:
        split = torch.split(x, self.half, 1)
        return torch.cat((self.instance(split[0].contiguous()), self.batch(split[1].contiguous())), 1)


def ibn_net() -> nn.Module:
    """IBN-Net: instance norm on one half of the channels, batch norm on the other."""
    return Normalised(InstanceBatchNorm)


class SwitchableNorm(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(1, channels, 1, 1) + 0.5)
        self.mean_weight = nn.Parameter(torch.randn(2) * 0.5)

    def forward(self, x: Tensor) -> Tensor:
        mean_in, var_in = x.mean((2, 3), keepdim=True), x.var((2, 3), keepdim=True)
        mean_ln = mean_in.mean(1, keepdim=True)
        var_ln = (var_in + mean_in**2).mean(1, keepdim=True) - mean_ln**2
        share = self.mean_weight.softmax(0)
        mean = share[0] * mean_in + share[1] * mean_ln
        var = share[0] * var_in + share[1] * var_ln
        return (x - mean) / (var + 1e-5).sqrt() * self.weight


def switchable_norm() -> nn.Module:
    """Switchable norm: moments of instance and layer mixed by a softmax over two parameters."""
    return Normalised(SwitchableNorm)


def local_response_norm() -> nn.Module:
    """LocalResponseNorm across even and odd numbers of channels."""
    return Normalised(lambda channels: nn.LocalResponseNorm(3 if channels < 16 else 6, alpha=0.3, beta=0.6, k=1.2))


class WholeMapLayerNorm(nn.Module):
    """LayerNorm over channels and pixels together, an affine parameter each."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 10, 3, stride=2, padding=1)
        self.norm1 = nn.LayerNorm([10, 15, 15])
        self.conv2 = nn.Conv2d(10, 14, 3, padding=1, bias=False)
        self.norm2 = nn.LayerNorm([15, 15], elementwise_affine=False)
        self.conv3 = nn.Conv2d(14, 18, 3, stride=2, padding=1, bias=False)
        self.norm3 = nn.LayerNorm([18, 8, 8])
        self.conv4 = nn.Conv2d(18, 18, 3, padding=1)
        self.conv5 = nn.Conv2d(18, 24, 1)
        self.head = classifier(24)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm1(self.conv1(x)))
        x = F.relu(self.norm2(self.conv2(x)))
        x = F.relu(self.norm3(self.conv3(x)))
        return self.head(F.relu(self.conv5(F.relu(self.conv4(x)))))


class AdaptiveInstanceNorm(nn.Module):
    """AdaIN: content features normalised, then given the mean and deviation of the style's; encoder used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.ReflectionPad2d(1), nn.Conv2d(3, 12, 3, stride=2), nn.ReLU(), nn.Conv2d(12, 16, 3, padding=1), nn.ReLU()
        )
        self.decoder = nn.Sequential(
            nn.Conv2d(16, 16, 3, padding=1),
            nn.ReLU(),
            nn.Upsample(scale_factor=2, mode="nearest"),
            nn.Conv2d(16, 12, 3, padding=1),
            nn.ReLU(),
            nn.ReflectionPad2d(1),
            nn.Conv2d(12, 8, 3),
            nn.ReLU(),
            nn.Conv2d(8, 3, 3, padding=1),
        )

    def forward(self, content: Tensor, style: Tensor) -> Tensor:
        content, style = self.encoder(content), self.encoder(style)
        mean, std = self._moments(content)
        style_mean, style_std = self._moments(style)
        return self.decoder((content - mean.expand_as(content)) / std * style_std + style_mean)

    @staticmethod
    def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
        n, c = x.size()[:2]
        variance = x.view(n, c, -1).var(dim=2) + 1e-3
        return x.view(n, c, -1).mean(dim=2).view(n, c, 1, 1), variance.sqrt().view(n, c, 1, 1)


FAMILY = "normalisation"
DEFINITIONS = (
    define("group_norm", FAMILY, group_norm),
    define("instance_norm", FAMILY, instance_norm, ((2, 3, 30, 30),)),
    define("instance_norm_affine", FAMILY, instance_norm_affine),
    define("instance_norm_running", FAMILY, instance_norm_running),
    define("batch_norm_plain", FAMILY, batch_norm_plain),
    define("batch_norm_untracked", FAMILY, batch_norm_untracked, ((4, 3, 28, 28),)),
    define("frozen_batch_norm", FAMILY, frozen_batch_norm),
    define("rms_norm", FAMILY, rms_norm),
    define("filter_response_norm", FAMILY, filter_response_norm),
    define("evo_norm", FAMILY, evo_norm),
    define("ibn_net", FAMILY, ibn_net),
    define("switchable_norm", FAMILY, switchable_norm),
    define("local_response_norm", FAMILY, local_response_norm),
    define("layer_norm_map", FAMILY, WholeMapLayerNorm, ((2, 3, 30, 30),)),
    define("adain", FAMILY, AdaptiveInstanceNorm, ((2, 3, 32, 32), (2, 3, 32, 32)), loss="mse"),
)
