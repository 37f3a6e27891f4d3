"""Blocks of small networks, one for every way in which a gradient meets another (docs/method.md, section 3)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

SHAPE = (2, 3, 8, 8)
WIDTH = 4


def conv(ci: int = WIDTH, co: int = WIDTH, k: int = 3, **options: int) -> nn.Conv2d:
    """Same size unless told otherwise."""
    return nn.Conv2d(ci, co, k, **{"padding": k // 2, **options})


def plain(ci: int = WIDTH, co: int = WIDTH, **options: int) -> nn.Conv2d:
    """Without bias: before a train-mode BatchNorm its gradient would be rounding alone."""
    return nn.Conv2d(ci, co, 3, padding=1, bias=False, **options)


def with_head(*parts: nn.Module, shape: tuple[int, ...] = SHAPE, pool: nn.Module | None = None) -> nn.Sequential:
    """The parts, pooling (global unless told otherwise) and a linear layer."""
    body = nn.Sequential(*parts, pool or nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with torch.no_grad():
        features = body.eval()(torch.zeros(shape)).shape[1]
    return nn.Sequential(*body, nn.Linear(features, 2))


class Apply(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Residual(nn.Module):
    """act(x + body(x)): the join stands before the activation, as in ResNet."""

    def __init__(self, *body: nn.Module, shortcut: nn.Module | None = None, act: nn.Module | None = None) -> None:
        super().__init__()
        self.body = nn.Sequential(*body)
        self.shortcut = shortcut or nn.Identity()
        self.act = act or nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.shortcut(x) + self.body(x))


class SqueezeExcite(nn.Module):
    """A gate a channel, computed from the pooled map."""

    def __init__(self, width: int = WIDTH, gate: nn.Module | None = None) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(width, 2, 1), nn.Conv2d(2, width, 1)
        self.gate = gate or nn.Sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(self.up(nn.functional.silu(self.down(x.mean((2, 3), keepdim=True)))))


class SpatialGate(nn.Module):
    """A gate a pixel, [N, 1, H, W]."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.score = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.score(x).sigmoid()


class LayerScale(nn.Module):
    """A trained factor a channel, [C, 1, 1]."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.linspace(0.5, 1.5, width).view(width, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class Dense(nn.Module):
    """cat(x, body(x)) along the channels, as in DenseNet."""

    def __init__(self, *body: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(*body)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.body(x)], 1)


class Branches(nn.Module):
    """Parts side by side on the channels that `cut` gives each of them."""

    def __init__(self, cut: Callable[[Tensor], list[Tensor]], *parts: nn.Module) -> None:
        super().__init__()
        self.cut, self.parts = cut, nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([part(piece) for part, piece in zip(self.parts, self.cut(x), strict=True)], 1)


class Product(nn.Module):
    """left(x) * right(x)."""

    def __init__(self, left: nn.Module, right: nn.Module) -> None:
        super().__init__()
        self.left, self.right = left, right

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) * self.right(x)
