"""What a definition is, and the weights under which an untrained network behaves like a trained one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from tests.models import randomise_statistics

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Definition:
    """A small network of one idiom; `make` returns the same weights every time, in eval mode."""

    name: str
    family: str
    make: Callable[[], nn.Module]
    inputs: Shapes = ((2, 3, 32, 32),)  # shapes of float32 inputs, batch first
    loss: str = "cross_entropy"  # or "mse"; classes and pixels follow from the first output
    layers: int = 4  # how many of the last convolutions are filtered

    @property
    def idiom(self) -> str:
        return (self.make.__doc__ or "").strip()

    def example(self, seed: int = 0) -> tuple[Tensor, ...]:
        return _random_inputs(self.inputs, seed)


def define(
    name: str,
    family: str,
    build: Callable[[], nn.Module],
    inputs: Shapes = ((2, 3, 32, 32),),
    loss: str = "cross_entropy",
    layers: int = 4,
) -> Definition:
    @functools.wraps(build, updated=())
    def make() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = build()
            _initialise(model)
        _randomise_norms(model)
        _fit_statistics(model.eval(), _random_inputs(inputs, seed=1))
        return model

    return Definition(name, family, make, inputs, loss, layers)


def _random_inputs(shapes: Shapes, seed: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(shape, generator=generator) for shape in shapes)


@torch.no_grad()
def _initialise(model: nn.Module) -> None:
    """Kaiming over what one output really adds up; modules under a parametrization keep what their builder gave them.

    A module whose parameters its builder set itself says so with `keeps_its_weights`.
    """
    for module in model.modules():
        if hasattr(module, "parametrizations") or getattr(module, "keeps_its_weights", False):
            continue
        if isinstance(module, _ConvNd):
            terms = module.weight[0].numel()
            if isinstance(module, _ConvTransposeNd):
                strides = torch.tensor(module.stride).prod().item()
                terms = max(1, module.weight[:, 0].numel() // module.groups // strides)
            module.weight.normal_(0.0, (2.0 / terms) ** 0.5)
            if module.bias is not None:
                module.bias.normal_(0.0, 0.1)
        elif isinstance(module, nn.Linear):
            module.weight.normal_(0.0, module.in_features**-0.5)
            if module.bias is not None:
                module.bias.normal_(0.0, 0.1)


@torch.no_grad()
def _randomise_norms(model: nn.Module) -> None:
    """As `randomise_statistics`, and the same values for every normalisation that is no complete BatchNorm2d."""
    for seed, module in enumerate(model.modules()):
        if not isinstance(module, _NormBase | nn.GroupNorm | nn.LayerNorm):
            continue
        statistics = getattr(module, "running_mean", None)
        if isinstance(module, nn.BatchNorm2d) and module.affine and statistics is not None:
            randomise_statistics(module, seed)
            continue
        generator = torch.Generator().manual_seed(seed)
        if statistics is not None:
            module.running_mean.normal_(0.0, 0.1, generator=generator)
            module.running_var.uniform_(1.0, 3.0, generator=generator)
        if module.weight is not None:
            module.weight.uniform_(0.6, 1.2, generator=generator)
        if module.bias is not None:
            module.bias.normal_(0.0, 0.1, generator=generator)


@torch.no_grad()
def _fit_statistics(model: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Scale the random running statistics by those of the activations, so that depth neither fades nor blows up."""

    def fit(module: _NormBase, arguments: tuple[Tensor, ...]) -> None:
        x = arguments[0].transpose(0, 1).flatten(1)  # [C, everything else]
        std, mean = torch.std_mean(x, dim=1)
        std = std.clamp(min=0.1)
        module.running_mean.mul_(std).add_(mean)
        module.running_var.mul_(std.square())

    norms = [m for m in model.modules() if isinstance(m, _NormBase) and m.running_mean is not None]
    hooks = [norm.register_forward_pre_hook(fit) for norm in norms]
    model(*inputs)
    for hook in hooks:
        hook.remove()
