"""A model whose convolutions are filtered in eager PyTorch by the NumPy oracle: none of the package's code is in it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.oracles import filtered_conv_gradients

Array = np.ndarray


@dataclass
class Seen:
    """What a convolution's backward read and gave."""

    x: Array
    w: Array
    gy: Array
    gx: Array
    gw: Array


@dataclass
class _Call:
    conv: nn.Conv2d
    r: int | None
    seen: list[Seen]

    def __call__(self, x: Tensor) -> Any:
        return _Convolution.apply(x, self.conv.weight, self.conv.bias, self)


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor | None, call: _Call) -> Any:
        ctx.save_for_backward(x, w)
        ctx.call, conv = call, call.conv
        ctx.has_bias = b is not None
        return F.conv2d(x, w, b, conv.stride, conv.padding, conv.dilation, conv.groups)

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> Any:
        x, w = ctx.saved_tensors
        gx, gw, gb = convolution_gradients(x.numpy(), w.numpy(), gy.numpy(), ctx.call.conv, ctx.call.r)
        ctx.call.seen.append(Seen(x.numpy(), w.numpy(), gy.numpy(), gx, gw))
        bias = torch.from_numpy(gb).to(x) if ctx.has_bias else None
        return torch.from_numpy(gx).to(x), torch.from_numpy(gw).to(w), bias, None


def convolution_gradients(x: Array, w: Array, gy: Array, conv: nn.Conv2d, r: int | None) -> tuple[Array, Array, Array]:
    """Exact by autograd in float64, or filtered by the oracle."""
    options = {"stride": conv.stride, "padding": conv.padding, "dilation": conv.dilation, "groups": conv.groups}
    if r is not None:
        return filtered_conv_gradients(x, w, gy, r=r, mode="unbiased", **options)
    leaves = [torch.tensor(array, dtype=torch.float64, requires_grad=True) for array in (x, w)]
    with torch.enable_grad():  # a backward function runs without
        output = F.conv2d(*leaves, None, **options)
    gx, gw = torch.autograd.grad(output, leaves, torch.tensor(gy, dtype=torch.float64))
    return gx.numpy(), gw.numpy(), gy.sum((0, 2, 3))


Gradients = tuple[dict[str, Seen], dict[str, Array]]


def backward(model: nn.Module, x: Tensor, y: Tensor, patches: Mapping[str, int | None]) -> Gradients:
    """What each named convolution saw, and every parameter's gradient, when these are filtered (None: exact)."""
    model = copy.deepcopy(model).eval()
    calls = {name: _Call(model.get_submodule(name), r, []) for name, r in patches.items()}
    for name, call in calls.items():
        model.get_submodule(name).forward = call
    F.cross_entropy(model(x), y).backward()
    gradients = {name: p.grad.numpy() for name, p in model.named_parameters() if p.grad is not None}
    return {name: call.seen[0] for name, call in calls.items()}, gradients


def snr_db(exact: Array, found: Array) -> float:
    exact, found = exact.astype(np.float64), found.astype(np.float64)
    noise = np.sum((exact - found) ** 2)
    return float(min(120.0, 10 * np.log10(np.sum(exact**2) / noise))) if noise else 120.0


def cosine(exact: Array, found: Array) -> float:
    a, b = exact.astype(np.float64).ravel(), found.astype(np.float64).ravel()
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))
