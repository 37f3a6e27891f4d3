"""Tiny networks, one idiom each. `ZOO[name]()` returns the same weights every time, whatever the global seed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from tests.models import initialise, randomise_statistics


def _conv_bn_relu(in_channels: int, channels: int, kernel: int = 3, **options: int) -> nn.Sequential:
    options.setdefault("padding", options.get("dilation", 1) * (kernel // 2))
    conv = nn.Conv2d(in_channels, channels, kernel, bias=False, **options)
    return nn.Sequential(conv, nn.BatchNorm2d(channels), nn.ReLU())


def _classifier(channels: int, classes: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]


def plain() -> nn.Module:
    """VGG-like: biased convolutions, max pooling, a flattened map into two linear layers."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(6, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 12, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(12 * 4 * 4, 16),
        nn.ReLU(),
        nn.Linear(16, 5),
    )


def conv_head() -> nn.Module:
    """The classifier is a 1x1 convolution, averaged over the map: no linear layer anywhere."""
    return nn.Sequential(
        _conv_bn_relu(3, 8, stride=2),
        _conv_bn_relu(8, 12),
        nn.Conv2d(12, 5, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


def grouped() -> nn.Module:
    """Groups between dense and depthwise, an odd non-square map, a strided grouped convolution."""
    return nn.Sequential(
        _conv_bn_relu(3, 8),
        _conv_bn_relu(8, 12, groups=2),
        _conv_bn_relu(12, 8, stride=2, groups=4),
        *_classifier(8, 5),
    )


def separable() -> nn.Module:
    """Depthwise then pointwise, strides in the depthwise part, one channel multiplier."""
    return nn.Sequential(
        _conv_bn_relu(3, 8, stride=2),
        _conv_bn_relu(8, 8, groups=8),
        _conv_bn_relu(8, 12, kernel=1),
        _conv_bn_relu(12, 24, kernel=5, stride=2, groups=12),
        _conv_bn_relu(24, 12, kernel=1),
        *_classifier(12, 5),
    )


class Concat(nn.Module):
    """Branches of different kernels, one of them pooled, joined along the channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = _conv_bn_relu(3, 8, stride=2)
        self.pointwise = _conv_bn_relu(8, 4, kernel=1)
        self.wide = _conv_bn_relu(8, 6, kernel=5)
        self.pooled = nn.Sequential(nn.AvgPool2d(3, stride=1, padding=1), _conv_bn_relu(8, 4, kernel=1))
        self.merge = _conv_bn_relu(14, 8)
        self.classifier = nn.Sequential(*_classifier(8, 5))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        joined = torch.cat([self.pointwise(x), self.wide(x), self.pooled(x)], dim=1)
        return self.classifier(self.merge(joined))


class Gate(nn.Module):
    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(channels, squeezed, 1)
        self.excite = nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        pooled = nn.functional.adaptive_avg_pool2d(x, 1)
        return x * torch.sigmoid(self.excite(torch.relu(self.squeeze(pooled))))


class SqueezeExcite(nn.Module):
    """A gated residual block with SiLU, as in EfficientNet."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = _conv_bn_relu(3, 8, stride=2)
        self.conv = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(8)
        self.gate = Gate(8, 4)
        self.project = _conv_bn_relu(8, 12, kernel=1)
        self.classifier = nn.Sequential(*_classifier(12, 5))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.gate(nn.functional.silu(self.bn(self.conv(x))))
        return self.classifier(self.project(x))


def dilated() -> nn.Module:
    """Growing and rectangular dilations, and a kernel without padding."""
    return nn.Sequential(
        _conv_bn_relu(3, 8),
        _conv_bn_relu(8, 8, dilation=2),
        _conv_bn_relu(8, 8, dilation=4),
        nn.Conv2d(8, 8, 3, padding=(1, 3), dilation=(1, 3)),
        nn.ReLU(),
        nn.Conv2d(8, 12, 3),
        nn.ReLU(),
        *_classifier(12, 5),
    )


class Regression(nn.Module):
    """Two real outputs, squared loss: leaky ReLU, hardswish, an even and a rectangular kernel, average pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 4, stride=2, padding=1)
        self.mix = nn.Conv2d(8, 8, (3, 1), padding=(1, 0))
        self.pool = nn.AvgPool2d(2)
        self.last = nn.Conv2d(8, 12, 3, padding=1)
        self.output = nn.Linear(12, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.leaky_relu(self.stem(x), 0.1)
        x = self.pool(nn.functional.hardswish(self.mix(x)))
        return self.output(torch.tanh(self.last(x)).mean(dim=(2, 3)))


def _reproducible(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def seeded() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = build()
            initialise(model)
        return randomise_statistics(model, seed=0)

    return seeded


ZOO: dict[str, Callable[[], nn.Module]] = {
    "plain": _reproducible(plain),
    "conv_head": _reproducible(conv_head),
    "grouped": _reproducible(grouped),
    "separable": _reproducible(separable),
    "concat": _reproducible(Concat),
    "squeeze_excite": _reproducible(SqueezeExcite),
    "dilated": _reproducible(dilated),
    "regression": _reproducible(Regression),
}

INPUTS: dict[str, tuple[int, ...]] = {
    "plain": (4, 3, 16, 16),
    "conv_head": (4, 3, 16, 16),
    "grouped": (3, 3, 15, 18),
    "separable": (4, 3, 17, 17),
    "concat": (2, 3, 16, 16),
    "squeeze_excite": (4, 3, 16, 16),
    "dilated": (2, 3, 16, 14),
    "regression": (4, 3, 16, 16),
}
