"""A network to compile that the tests have only in small; it imports torch alone, so that any commit can compile it."""

from __future__ import annotations

from torch import Tensor, nn

STAGES = (  # EfficientNet-B0's: expansion, channels, blocks, stride, kernel
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    padding = kernel // 2
    return [nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False), nn.BatchNorm2d(outputs)]


class Gate(nn.Module):
    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.gate = nn.Sequential(
            nn.Conv2d(channels, squeezed, 1), nn.SiLU(), nn.Conv2d(squeezed, channels, 1), nn.Sigmoid()
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(self.pool(x))


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, expansion: int, stride: int, kernel: int) -> None:
        super().__init__()
        wide = inputs * expansion
        expand = [*_conv(inputs, wide, 1), nn.SiLU()] if expansion > 1 else []
        depthwise = [*_conv(wide, wide, kernel, stride, wide), nn.SiLU(), Gate(wide, max(1, inputs // 4))]
        self.body = nn.Sequential(*expand, *depthwise, *_conv(wide, outputs, 1))
        self.skips = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.skips else self.body(x)


def efficientnet_b0() -> nn.Module:
    parts: list[nn.Module] = [*_conv(3, 32, 3, 2), nn.SiLU()]
    inputs = 32
    for expansion, channels, blocks, stride, kernel in STAGES:
        for number in range(blocks):
            parts.append(Block(inputs, channels, expansion, stride if number == 0 else 1, kernel))
            inputs = channels
    parts += [*_conv(inputs, 1280, 1), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000)]
    return nn.Sequential(*parts)
