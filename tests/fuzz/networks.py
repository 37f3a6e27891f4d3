"""Random CNNs and random ways to compile them, from a seed: `draw(seed)` is the same network on every machine."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tests.fuzz.blocks import (
    Branches,
    ChannelNorm,
    ChannelShuffle,
    Heads,
    LayerScale,
    Residual,
    SpatialGate,
    SqueezeExcite,
)
from tests.passes.nets import Dense

CLASSES = 3
MOST_PIXELS = 200  # of a map: upsampling must not make the rest slow
ACTIVATIONS: list[Callable[[], nn.Module]] = [
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Hardswish,
    nn.Hardsigmoid, nn.Hardtanh, nn.Sigmoid, nn.Tanh, nn.Softplus, nn.Softsign, nn.LogSigmoid, nn.Tanhshrink,
    nn.Softshrink, nn.Softmax2d, lambda: nn.GELU("tanh"), lambda: nn.Threshold(0.1, -0.2), lambda: nn.Hardtanh(-0.5, 2),
]  # fmt: skip
# eps far above the rounding of gradients: Adam divides by their size, and would make rounding a whole step
OPTIMIZERS: list[dict[str, Any]] = [
    {"name": "sgd"},
    {"name": "sgd", "momentum": 0.9},
    {"name": "sgd", "momentum": 0.8, "nesterov": True, "weight_decay": 0.01},
    {"name": "sgd", "momentum": 0.5, "dampening": 0.3, "maximize": True},
    {"name": "adam", "eps": 1e-2},
    {"name": "adam", "eps": 1e-2, "amsgrad": True, "weight_decay": 0.01},
    {"name": "adamw", "eps": 1e-2},
    {"name": "rmsprop", "eps": 1e-2},
    {"name": "rmsprop", "eps": 1e-2, "centered": True, "momentum": 0.9},
]
LOSSES = ["cross_entropy", "cross_entropy", "cross_entropy:label_smoothing=0.1", "mse", "smooth_l1", "huber"]


@dataclass(frozen=True)
class Network:
    """A model in eval mode, the shape of its batch, and how it is to be compiled: arguments of gfcompile.compile."""

    seed: int
    model: nn.Module
    shape: tuple[int, int, int, int]
    options: dict[str, Any]

    def __str__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        return f"seed {self.seed}, input {'x'.join(map(str, self.shape))}, {options}\n{self.model}"


@dataclass
class _Chain:
    """Modules so far, and the map they give: channels, rows, columns."""

    width: int
    size: tuple[int, int]
    parts: list[nn.Module] = field(default_factory=list)

    def append(self, *parts: nn.Module) -> bool:
        """False, and nothing changes, where the map would vanish or grow too large."""
        made = nn.Sequential(*parts).eval()
        try:
            with torch.no_grad():
                _, width, *size = made(torch.zeros(1, self.width, *self.size)).shape
        except (RuntimeError, ValueError):  # a kernel larger than its image, an output of no pixels
            return False
        if not 1 <= size[0] * size[1] <= MOST_PIXELS or not 1 <= width <= 12:
            return False
        self.parts += parts
        self.width, self.size = width, (size[0], size[1])
        return True


def draw(seed: int) -> Network:
    """The network of a seed."""
    dice = random.Random(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _Draw(dice).network(seed)


class _Draw:
    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.batch = dice.choice([1, 2, 3])
        self.batchnorm = dice.choice(["eval", "eval", "eval", "train"]) if self.batch > 1 else "eval"

    def often(self, share: float) -> bool:
        return self.dice.random() < share

    def network(self, seed: int) -> Network:
        dice = self.dice
        shape = (self.batch, dice.choice([1, 2, 3]), dice.randint(5, 13), dice.randint(5, 13))
        chain = _Chain(shape[1], (shape[2], shape[3]))
        chain.append(nn.Conv2d(chain.width, dice.choice([2, 3, 4, 6]), 3, padding=1, bias=self.often(0.5)))
        wanted = dice.randint(2, 5)
        for _ in range(4 * wanted):
            if len(chain.parts) < 2 * wanted:
                self.grow(chain)
        model, loss = self.head(chain)
        _initialise(model.eval())
        return Network(seed, model, shape, self.options(model, loss))

    # ---- the body

    def grow(self, chain: _Chain) -> None:
        kinds: list[tuple[int, Callable[[_Chain], Any]]] = [
            (8, lambda chain: chain.append(*self.convolution(chain.width))),
            (5, lambda chain: chain.append(self.norm(chain))),
            (6, lambda chain: chain.append(self.activation(chain))),
            (4, self.residual),
            (2, lambda chain: chain.append(Dense(*self.body(chain, self.dice.randint(1, 3))))),
            (2, self.branches),
            (3, lambda chain: chain.append(self.gate(chain.width))),
            (3, lambda chain: chain.append(self.pool())),
            (1, lambda chain: chain.append(*self.resample(chain))),
            (1, lambda chain: chain.append(self.dice.choice([nn.Dropout(0.3), nn.Dropout2d(0.2), nn.Identity()]))),
        ]
        (_, kind), *_ = self.dice.choices(kinds, [weight for weight, _ in kinds])
        kind(chain)

    def convolution(self, width: int) -> list[nn.Module]:
        """Any geometry; an asymmetric padding stands before it."""
        dice = self.dice
        kernel = dice.choice([1, 1, 3, 3, 3, 5, 2, (1, 3), (3, 1), (3, 5), (5, 1)])
        rows, cols = kernel if isinstance(kernel, tuple) else (kernel, kernel)
        stride = dice.choice([1, 1, 1, 1, 2, 2, 3, (1, 2), (2, 1)])
        dilation = dice.choice([1, 1, 1, 1, 2, 3, (1, 2)])
        dr, dc = dilation if isinstance(dilation, tuple) else (dilation, dilation)
        groups = dice.choice([1, 1, 1, *(g for g in (2, 3, width) if width % g == 0)])
        channels = groups * dice.choice([n for n in (1, 2, 3, 4, 6) if n * groups <= 12] or [1])
        same = (dr * (rows - 1) // 2, dc * (cols - 1) // 2)
        before: list[nn.Module] = []
        padding = dice.choice([same, same, same, 0, 1, "valid", "same" if stride == 1 else same])
        mode = dice.choice(["zeros"] * 6 + ["reflect", "replicate", "circular"])
        mode = "zeros" if isinstance(padding, str) else mode
        if self.often(0.15):
            before = [nn.ZeroPad2d(tuple(dice.randint(0, 2) for _ in range(4)))]
            padding, mode = 0, "zeros"
        bias = self.often(0.5)
        return [*before, nn.Conv2d(width, channels, kernel, stride, padding, dilation, groups, bias, mode)]

    def body(self, chain: _Chain, channels: int) -> list[nn.Module]:
        """Keeps the map's size and gives these channels."""
        dice, width = self.dice, chain.width
        parts: list[nn.Module] = []
        if self.often(0.3):
            parts += [nn.BatchNorm2d(width), self.activation(chain)]
        for _ in range(dice.choice([1, 1, 2])):
            k, d = dice.choice([1, 3, 3, 5]), dice.choice([1, 1, 2])
            groups = dice.choice([1, 1, width])
            inner = width if groups > 1 else dice.choice([2, 4, channels])
            parts.append(nn.Conv2d(width, inner, k, 1, d * (k // 2), d, groups, bias=self.often(0.4)))
            width = inner
            parts += [nn.BatchNorm2d(width)] if self.often(0.5) else []
            parts += [dice.choice(ACTIVATIONS)()] if self.often(0.5) else []
        return [*parts, nn.Conv2d(width, channels, dice.choice([1, 3]), padding="same", bias=self.often(0.4))]

    def residual(self, chain: _Chain) -> None:
        dice = self.dice
        after = dice.choice([nn.Identity, nn.Identity, *ACTIVATIONS])()
        if self.often(0.3):  # projected and perhaps strided, as between a ResNet's stages
            channels, stride = dice.choice([4, 6]), dice.choice([1, 2])
            first = nn.Conv2d(chain.width, channels, 3, stride, 1, bias=False)
            inside = [first, nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1)]
            shortcut = nn.Sequential(nn.Conv2d(chain.width, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))
            chain.append(Residual(*inside, shortcut=shortcut, after=after))
        else:
            chain.append(Residual(*self.body(chain, chain.width), shortcut=nn.Identity(), after=after))

    def branches(self, chain: _Chain) -> None:
        if chain.width < 2 or self.often(0.3):
            chain.append(ChannelShuffle(self.dice.choice([g for g in (1, 2, 3) if chain.width % g == 0])))
            return
        cut = self.dice.randint(1, chain.width - 1)
        upper = _Chain(chain.width - cut, chain.size)
        chain.append(Branches(cut, nn.Identity(), nn.Sequential(*self.body(upper, self.dice.randint(1, 4)))))

    def norm(self, chain: _Chain) -> nn.Module:
        width, affine = chain.width, self.often(0.8)
        one_value = self.batch * chain.size[0] * chain.size[1] == 1
        group = self.dice.choice([g for g in (1, 2, 3, width) if width % g == 0])
        others = [
            lambda: nn.GroupNorm(group, width, affine=affine),
            lambda: ChannelNorm(width),
            lambda: nn.LayerNorm([width, *chain.size], elementwise_affine=affine),
        ]
        if chain.size[0] * chain.size[1] > 3:
            others.append(lambda: nn.InstanceNorm2d(width, affine=affine))
        if self.often(0.6) and not (one_value and self.batchnorm == "train"):
            return nn.BatchNorm2d(width, affine=affine, momentum=self.dice.choice([0.1, 0.3]))
        return self.dice.choice(others)()

    def activation(self, chain: _Chain) -> nn.Module:
        if self.often(0.1):
            return nn.PReLU(chain.width)
        return self.dice.choice([nn.ReLU, nn.ReLU, nn.ReLU, *ACTIVATIONS])()

    def gate(self, width: int) -> nn.Module:
        gates = [nn.Sigmoid, nn.Hardsigmoid, nn.Tanh]
        kinds = [lambda: SqueezeExcite(width, self.dice.choice(gates)()), lambda: SpatialGate(width)]
        return self.dice.choice([*kinds, lambda: LayerScale(width)])()

    def pool(self) -> nn.Module:
        size = self.dice.choice([1, 2, 3, (2, 3)])
        return self.dice.choice(
            [
                lambda: nn.MaxPool2d(2),
                lambda: nn.MaxPool2d(3, 2, 1),
                lambda: nn.MaxPool2d(2, ceil_mode=True),
                lambda: nn.MaxPool2d((2, 3), 1, dilation=(2, 1)),
                lambda: nn.AvgPool2d(2),
                lambda: nn.AvgPool2d(3, 2, 1),
                lambda: nn.AvgPool2d(3, 1, 1, count_include_pad=False),
                lambda: nn.AvgPool2d(2, ceil_mode=True),
                lambda: nn.AdaptiveAvgPool2d(size),
                lambda: nn.AdaptiveMaxPool2d(size),
                lambda: nn.LPPool2d(2, 2),
            ]
        )()

    def resample(self, chain: _Chain) -> list[nn.Module]:
        width = chain.width
        kinds: list[Callable[[], list[nn.Module]]] = [
            lambda: [nn.Upsample(scale_factor=2)],
            lambda: [nn.Upsample(scale_factor=2, mode="bilinear", align_corners=self.often(0.5))],
            lambda: [nn.Upsample(size=(7, 6), mode="bilinear")],
            lambda: [nn.Upsample(scale_factor=1.5, mode="bicubic")],
            lambda: [nn.ConvTranspose2d(width, self.dice.choice([2, 3]), self.dice.choice([2, 3]), 2)],
        ]
        kinds += [lambda: [nn.PixelShuffle(2)]] if width % 4 == 0 else []
        kinds += [lambda: [nn.PixelUnshuffle(2)]] if not (chain.size[0] % 2 or chain.size[1] % 2) else []
        return self.dice.choice(kinds)()

    # ---- the head and the options

    def head(self, chain: _Chain) -> tuple[nn.Module, str]:
        """The model and a loss that fits it."""
        dice, width, (height, columns) = self.dice, chain.width, chain.size
        flat = [nn.Flatten(), nn.Linear(width * height * columns, CLASSES)]
        pooled = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES, bias=self.often(0.7))]
        convolved = [nn.Conv2d(width, CLASSES, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        kinds: list[Callable[[], nn.Module]] = [
            lambda: nn.Sequential(*chain.parts, *pooled),
            lambda: nn.Sequential(*chain.parts, *pooled),
            lambda: nn.Sequential(*chain.parts, *flat),
            lambda: nn.Sequential(*chain.parts, *convolved),
            lambda: nn.Sequential(*chain.parts, nn.Conv2d(width, CLASSES, dice.choice([1, 3]), padding="same")),
            lambda: Heads(nn.Sequential(*chain.parts), nn.Sequential(*pooled), nn.Conv2d(width, 2, 1)),
        ]
        return dice.choice(kinds)(), dice.choice(LOSSES)

    def options(self, model: nn.Module, loss: str) -> dict[str, Any]:
        dice = self.dice
        names = [name for name, part in model.named_modules() if isinstance(part, nn.Conv2d)]
        found: dict[str, Any] = {"loss": loss, "optimizer": dice.choice(OPTIMIZERS), "lr": 0.05}
        found["layers"] = dice.choice([None, None, *range(1, len(names))]) if len(names) > 1 else None
        found["r"] = dice.choice([1, 2, 2, 3, 4, 7])
        if self.often(0.2):
            found["exact"] = True
        elif found["layers"] is None and not isinstance(model, Heads) and self.often(0.4):
            found["r"] = {"*": found["r"], **{name: dice.choice([None, 1, 2, 4]) for name in names if self.often(0.4)}}
        if self.often(0.2):
            found["sparse"] = dice.choice([0.3, 0.5])
            found["sparse_strategy"] = dice.choice(["step", "fixed", "norm"])
        if self.often(0.1):
            found["compat"] = "reference"
        for name, share in (("calculus", 0.15), ("winograd", 0.25)):
            if self.often(share):
                found[name] = False
        for name, share in (("train_affine", 0.4), ("debug", 0.5)):
            if self.often(share):
                found[name] = True
        if self.often(0.15):
            found["clip_norm"] = 0.5
        norms = [name for name, part in model.named_modules() if isinstance(part, nn.BatchNorm2d)]
        if self.batchnorm == "train" and norms:
            found["batchnorm"] = "train" if self.often(0.7) else {"*": "eval", dice.choice(norms): "train"}
        return found


@torch.no_grad()
def _initialise(model: nn.Module) -> None:
    """Kernels over their fan-in; norms, biases and statistics as of a trained network: no two channels alike."""
    for module in model.modules():
        weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d | nn.Linear):
            nn.init.kaiming_normal_(weight, nonlinearity="relu")
        elif weight is not None and not isinstance(module, nn.PReLU):
            weight.uniform_(0.6, 1.2)
        if bias is not None:
            bias.normal_(0.0, 0.1)
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0.0, 0.1)
            module.running_var.uniform_(1.0, 3.0)


def batch(network: Network, number: int) -> Tensor:
    """Input number `number`, of the same values every time."""
    generator = torch.Generator().manual_seed(network.seed * 10 + number)
    return torch.randn(network.shape, generator=generator)
