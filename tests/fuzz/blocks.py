"""Blocks of random networks that torch.nn does not have, each printing what it is made of."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Residual(nn.Module):
    """after(shortcut(x) + body(x))."""

    def __init__(self, *body: nn.Module, shortcut: nn.Module, after: nn.Module) -> None:
        super().__init__()
        self.body, self.shortcut, self.after = nn.Sequential(*body), shortcut, after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.shortcut(x) + self.body(x))


class Branches(nn.Module):
    """The first `cut` channels take one way, the others another."""

    def __init__(self, cut: int, low: nn.Module, high: nn.Module) -> None:
        super().__init__()
        self.cut, self.low, self.high = cut, low, high

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.low(x[:, : self.cut]), self.high(x[:, self.cut :])], 1)

    def extra_repr(self) -> str:
        return f"cut={self.cut}"


class ChannelShuffle(nn.Module):
    """As ShuffleNet does it."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        return x.view(batch, self.groups, channels // self.groups, height, width).transpose(1, 2).reshape(x.shape)

    def extra_repr(self) -> str:
        return f"{self.groups}"


class SqueezeExcite(nn.Module):
    """A gate a channel, computed from the pooled map."""

    def __init__(self, width: int, gate: nn.Module) -> None:
        super().__init__()
        self.down, self.up, self.gate = nn.Conv2d(width, 2, 1), nn.Conv2d(2, width, 1), gate

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(self.up(nn.functional.silu(self.down(x.mean((2, 3), keepdim=True)))))


class SpatialGate(nn.Module):
    """A gate a pixel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.score = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.score(x).sigmoid()


class LayerScale(nn.Module):
    """A trained factor a channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.linspace(0.5, 1.5, width).view(width, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class ChannelNorm(nn.Module):
    """LayerNorm over the channels of each pixel, as in ConvNeXt."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Heads(nn.Module):
    """Two outputs of one body; a loss reads the first."""

    def __init__(self, body: nn.Module, main: nn.Module, other: nn.Module) -> None:
        super().__init__()
        self.body, self.main, self.other = body, main, other

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(x)
        return self.main(features), self.other(features)
