"""A network of MCUNet's kind: inverted residuals of mixed kernels and expansions, for microcontrollers."""

from __future__ import annotations

from torch import Tensor, nn

from tests.models import initialise
from tests.models.mobilenet import conv_bn_relu

# kernel, expansion, channels, stride of each block
BLOCKS = (
    (3, 1, 8, 1),
    (7, 3, 16, 2),
    (3, 6, 16, 1),
    (5, 3, 16, 1),
    (5, 5, 24, 2),
    (5, 5, 24, 1),
    (5, 4, 24, 1),
    (5, 6, 40, 2),
    (7, 4, 40, 1),
    (5, 5, 40, 1),
    (5, 4, 48, 1),
    (5, 5, 48, 1),
    (7, 6, 96, 2),
    (5, 5, 96, 1),
    (3, 4, 96, 1),
    (7, 5, 160, 1),
)


class MixedResidual(nn.Module):
    """Expand, a depthwise kernel of any size, project."""

    def __init__(self, in_channels: int, channels: int, kernel: int, expansion: int, stride: int) -> None:
        super().__init__()
        hidden = in_channels * expansion
        expand = [conv_bn_relu(in_channels, hidden, kernel=1)] if expansion != 1 else []
        self.conv = nn.Sequential(
            *expand,
            conv_bn_relu(hidden, hidden, kernel, stride, groups=hidden),
            nn.Conv2d(hidden, channels, 1, bias=False),
            nn.BatchNorm2d(channels),
        )
        self.has_shortcut = stride == 1 and in_channels == channels

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.has_shortcut else self.conv(x)


def mcunet(num_classes: int = 1000) -> nn.Sequential:
    blocks, channels = [], 16
    for kernel, expansion, width, stride in BLOCKS:
        blocks.append(MixedResidual(channels, width, kernel, expansion, stride))
        channels = width
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes))
    model = nn.Sequential(conv_bn_relu(3, 16, kernel=3, stride=2), *blocks, *head)
    initialise(model)
    return model
