"""Many drawn convolutions as one model, so that one trace or one compile checks them all.

Branch i sees its own channels and corner of the input, through a trained 1x1 convolution whose weight gradient shows
the drawn convolution's gx, then the drawn convolution; the flattened outputs are joined.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import hypothesis
import numpy as np
import torch
from hypothesis import Phase, given, settings
from torch import Tensor, nn

from tests.geometries import MAX_SIZE, ConvArguments, Geometry, conv_geometries
from tests.oracles import exact_conv_forward, filtered_conv_gradients

BATCH = 2
FRONT_CHANNELS = 2
POINTWISE: ConvArguments = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}


@cache
def draw_geometries(count: int, seed: int) -> tuple[Geometry, ...]:
    """Distinct geometries from the strategy; the same seed, the same geometries."""
    found: list[Geometry] = []

    @hypothesis.seed(seed)
    @settings(max_examples=3 * count, phases=[Phase.generate], database=None, derandomize=False)
    @given(conv_geometries())
    def collect(geometry: Geometry) -> None:
        found.append(replace(geometry, batch=BATCH))

    collect()
    distinct = list(dict.fromkeys(found))
    return tuple(random.Random(seed).sample(distinct, count))


class Branch(nn.Module):
    def __init__(self, geometry: Geometry, index: int) -> None:
        super().__init__()
        g = geometry
        self.front = nn.Conv2d(FRONT_CHANNELS, g.in_channels, 1, bias=False)
        self.conv = nn.Conv2d(g.in_channels, g.out_channels, g.kernel, **g.conv_arguments)
        self.first = FRONT_CHANNELS * index
        self.size = (g.height, g.width)

    def forward(self, x: Tensor) -> Tensor:
        mine = x[:, self.first : self.first + FRONT_CHANNELS, : self.size[0], : self.size[1]]
        return self.conv(self.front(mine)).flatten(1)


class Branches(nn.Module):
    """Inputs and front weights are positive: sums that nearly cancel would measure float32, not the formulas."""

    def __init__(self, geometries: Sequence[Geometry], seed: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(Branch(geometry, index) for index, geometry in enumerate(geometries))
        random_numbers = np.random.default_rng(seed)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                low = 0.2 if ".front." in name else -0.5
                parameter.copy_(torch.from_numpy(random_numbers.uniform(low, 1.0, parameter.shape)))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], dim=1)


def example_batch(model: Branches, seed: int) -> tuple[Tensor, Tensor]:
    """An input and a target for a squared loss."""
    random_numbers = np.random.default_rng(seed + 1)
    x = random_numbers.uniform(0.5, 1.5, (BATCH, FRONT_CHANNELS * len(model.branches), MAX_SIZE, MAX_SIZE))
    with torch.no_grad():
        shape = model(torch.from_numpy(x).float()).shape
    target = random_numbers.normal(0.0, 1.0, shape)
    return torch.from_numpy(x).float(), torch.from_numpy(target).float()


def patches(geometries: Sequence[Geometry]) -> dict[str, int]:
    """A pointwise convolution of stride 1 is exact at r=1: the front ones stay so."""
    return {"*": 1} | {f"branches.{index}.conv": geometry.r for index, geometry in enumerate(geometries)}


def oracle_gradients(
    model: Branches, geometries: Sequence[Geometry], x: Tensor, target: Tensor, mode: str
) -> tuple[dict[str, np.ndarray], set[str]]:
    """Gradients of the squared loss by parameter name, in float64, and the layers that the mode does not define."""
    state = {name: tensor.detach().double().numpy() for name, tensor in model.named_parameters()}
    images, targets = x.double().numpy(), target.double().numpy()
    gradients: dict[str, np.ndarray] = {}
    undefined: set[str] = set()
    column = 0
    for index, (branch, geometry) in enumerate(zip(model.branches, geometries, strict=True)):
        layer = f"branches.{index}"
        front, w, b = (state[f"{layer}.{name}"] for name in ("front.weight", "conv.weight", "conv.bias"))
        mine = images[:, branch.first : branch.first + FRONT_CHANNELS, : geometry.height, : geometry.width]
        inner = exact_conv_forward(mine, front, None, **POINTWISE)
        y = exact_conv_forward(inner, w, b, **geometry.conv_arguments)
        wanted = targets[:, column : column + y[0].size].reshape(y.shape)
        column += y[0].size
        gy = 2 * (y - wanted) / targets.size  # the mean over all outputs of (y - target)^2
        try:
            gx, gw, gb = filtered_conv_gradients(inner, w, gy, r=geometry.r, mode=mode, **geometry.conv_arguments)
        except ValueError:
            undefined.add(f"{layer}.conv")
            gx, gw, gb = _exact_gradients(inner, w, gy, geometry.conv_arguments)
        gradients[f"{layer}.conv.weight"], gradients[f"{layer}.conv.bias"] = gw, gb
        gradients[f"{layer}.front.weight"] = np.einsum("nohw,nihw->oi", gx, mine)[:, :, None, None]
    assert column == targets.shape[1]
    return gradients, undefined


def _exact_gradients(
    x: np.ndarray, w: np.ndarray, gy: np.ndarray, geometry: ConvArguments
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    image, weight = (torch.from_numpy(array).requires_grad_() for array in (x, w))
    torch.conv2d(image, weight, None, **geometry).backward(torch.from_numpy(gy))
    return image.grad.numpy(), weight.grad.numpy(), gy.sum(axis=(0, 2, 3))
