"""Every activation of `torch.nn` that a CNN is seen to use, two or three to a network."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.models.definitions.blocks import CLASSES, classifier, conv_bn
from tests.models.definitions.definition import define


class Activated(nn.Module):
    """Six convolutions with the given activations after them in turn; the first keeps a ReLU."""

    def __init__(self, *activations: nn.Module) -> None:
        super().__init__()
        self.stem = conv_bn(3, 12, stride=2)
        layers: list[nn.Module] = []
        for index, (in_channels, channels) in enumerate(((12, 14), (14, 14), (14, 18), (18, 18), (18, 21))):
            layers.append(nn.Conv2d(in_channels, channels, 3, stride=2 if index == 2 else 1, padding=1))
            layers.append(nn.BatchNorm2d(channels) if index % 2 else nn.Identity())
            layers.append(activations[index % len(activations)])
        self.features = nn.Sequential(*layers)
        self.head = classifier(21)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(self.stem(x)))


def leaky_relu() -> nn.Module:
    """LeakyReLU, in place and not, of a gentle and a steep slope."""
    return Activated(nn.LeakyReLU(0.1, inplace=True), nn.LeakyReLU(0.3))


def prelu() -> nn.Module:
    """PReLU with one slope for all channels and with one each."""
    return Activated(nn.PReLU(), nn.PReLU(14), nn.PReLU(), nn.PReLU(18), nn.PReLU(21))


def exponential_units() -> nn.Module:
    """ELU, CELU and SELU."""
    return Activated(nn.ELU(0.8), nn.CELU(1.3), nn.SELU())


def mish_silu() -> nn.Module:
    """Mish and SiLU as modules."""
    return Activated(nn.Mish(), nn.SiLU(inplace=True))


def gelu() -> nn.Module:
    """GELU, exact and by tanh, and the quick form x * sigmoid(1.702 x)."""
    return Activated(nn.GELU(), nn.GELU(approximate="tanh"), QuickGELU())


class QuickGELU(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


def soft_units() -> nn.Module:
    """Softplus of two betas and Softsign."""
    return Activated(nn.Softplus(), nn.Softsign(), nn.Softplus(beta=2.0, threshold=4.0))


def hard_units() -> nn.Module:
    """Hardtanh, Hardsigmoid, Hardswish and ReLU6."""
    return Activated(nn.Hardtanh(-1.5, 2.0), nn.Hardswish(), nn.ReLU6(), nn.Hardsigmoid())


def log_sigmoid() -> nn.Module:
    """LogSigmoid, Tanhshrink and Tanh."""
    return Activated(nn.LogSigmoid(), nn.Tanhshrink(), nn.Tanh())


def shrink_units() -> nn.Module:
    """Softshrink, Hardshrink and Threshold with a value of its own."""
    return Activated(nn.Softshrink(0.2), nn.Hardshrink(0.1), nn.Threshold(0.05, 0.02))


def rrelu() -> nn.Module:
    """RReLU, which in eval mode has the mean of its slopes."""
    return Activated(nn.RReLU(0.1, 0.4))


class GatedLinear(nn.Module):
    """GLU along the channels, a gate by `chunk`, and a tanh times sigmoid."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 12, stride=2)
        self.conv1 = nn.Conv2d(12, 28, 3, padding=1)
        self.glu = nn.GLU(dim=1)
        self.conv2 = nn.Conv2d(14, 36, 3, stride=2, padding=1)
        self.conv3 = nn.Conv2d(18, 40, 3, padding=1)
        self.conv4 = nn.Conv2d(20, 24, 1)
        self.head = classifier(24)

    def forward(self, x: Tensor) -> Tensor:
        x = self.glu(self.conv1(self.stem(x)))
        x, gate = self.conv2(x).chunk(2, dim=1)
        x = x * F.gelu(gate)
        filtered, gate = torch.split(self.conv3(x), 20, dim=1)
        return self.head(self.conv4(torch.tanh(filtered) * torch.sigmoid(gate)))


class Maxout(nn.Module):
    """Maxout over pieces of the channels, and concatenated ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 12, stride=2)
        self.conv1 = nn.Conv2d(12, 30, 3, padding=1)
        self.conv2 = nn.Conv2d(10, 9, 3, padding=1)
        self.conv3 = nn.Conv2d(18, 24, 3, stride=2, padding=1)
        self.conv4 = nn.Conv2d(12, 20, 1)
        self.head = classifier(20)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(self.stem(x))
        n, _, h, w = x.shape
        x = x.view(n, 10, 3, h, w).max(dim=2)[0]
        x = self.conv2(x)
        x = torch.cat([F.relu(x), F.relu(-x)], dim=1)
        first, second = self.conv3(x).chunk(2, 1)
        return self.head(F.relu(self.conv4(torch.max(first, second))))


class LearntActivations(nn.Module):
    """Swish with a learnt beta, ACON, and Snake's x + sin^2: activations with parameters of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 12, stride=2)
        self.conv1 = nn.Conv2d(12, 14, 3, padding=1)
        self.beta = nn.Parameter(torch.tensor(1.3))
        self.conv2 = nn.Conv2d(14, 18, 3, stride=2, padding=1)
        self.p1, self.p2 = nn.Parameter(torch.randn(1, 18, 1, 1)), nn.Parameter(torch.randn(1, 18, 1, 1))
        self.conv3 = nn.Conv2d(18, 18, 3, padding=1)
        self.alpha = nn.Parameter(torch.rand(18, 1, 1) + 0.5)
        self.conv4 = nn.Conv2d(18, 24, 1)
        self.fc = nn.Linear(24, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(self.stem(x))
        x = x * torch.sigmoid(self.beta * x)
        x = self.conv2(x)
        dpx = (self.p1 - self.p2) * x
        x = dpx * torch.sigmoid(self.beta * dpx) + self.p2 * x
        x = self.conv3(x)
        x = x + torch.sin(self.alpha * x).pow(2) / self.alpha
        return self.fc(self.conv4(x).mean((-2, -1)))


FAMILY = "activations"
DEFINITIONS = (
    define("leaky_relu", FAMILY, leaky_relu),
    define("prelu", FAMILY, prelu),
    define("exponential_units", FAMILY, exponential_units),
    define("mish_silu", FAMILY, mish_silu),
    define("gelu", FAMILY, gelu),
    define("soft_units", FAMILY, soft_units),
    define("hard_units", FAMILY, hard_units),
    define("log_sigmoid", FAMILY, log_sigmoid),
    define("shrink_units", FAMILY, shrink_units),
    define("rrelu", FAMILY, rrelu),
    define("gated_linear", FAMILY, GatedLinear),
    define("maxout", FAMILY, Maxout),
    define("learnt_activations", FAMILY, LearntActivations),
)
