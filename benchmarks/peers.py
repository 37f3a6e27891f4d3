"""What the compiled step is timed against: PyTorch eager in its variants, and the published gradient filter.

`_filtered` puts the published operator (docs/method.md, "The published formulas") into a model as its authors do: an
autograd function in place of each convolution that is trained and filtered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

OneStep = Callable[[], Any]
LEARNING_RATE, MOMENTUM, WEIGHT_DECAY = 0.01, 0.9, 1e-4


@dataclass(frozen=True)
class Task:
    """A model, a batch, and which layers are trained: `filtered` convolutions and `head` parameters."""

    model: nn.Module
    x: Tensor
    labels: Tensor
    trained: frozenset[str]
    filtered: tuple[str, ...]
    r: int


class FilteredConvolution(torch.autograd.Function):
    """Forward exact; backward patch-sum, channel-mix, broadcast by the published formulas, groups 1 or depthwise."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, stride: int, padding: int, groups: int, r: int) -> Tensor:
        y = F.conv2d(x, w, None, stride, padding, 1, groups)
        patches = [ceil(size / r) for size in y.shape[2:]]
        window = r * stride
        pads = [ceil((n * window - size) / 2) for n, size in zip(patches, x.shape[2:], strict=True)]
        x_tilde = F.avg_pool2d(F.pad(x, (pads[1], pads[1], pads[0], pads[0])), window) * window**2
        ctx.save_for_backward(x_tilde[:, :, : patches[0], : patches[1]], w)
        ctx.geometry = (x.shape[2:], window, pads, patches, groups, r)
        return y

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x_tilde, w = ctx.saved_tensors
        size, window, pads, patches, groups, r = ctx.geometry
        pad = [ceil((n * r - length) / 2) for n, length in zip(patches, gy.shape[2:], strict=True)]
        g = F.avg_pool2d(gy, r, padding=(pad[0], pad[1]), ceil_mode=True, count_include_pad=False)
        g = g[:, :, : patches[0], : patches[1]]
        summed = w.sum((2, 3))  # [Co, Ci/groups]
        if groups == 1:
            mixed = torch.einsum("oi,nopq->nipq", summed, g) if ctx.needs_input_grad[0] else None
            per_tap = torch.einsum("nopq,nipq->oi", g, x_tilde)
        else:
            mixed = summed[:, 0, None, None] * g
            per_tap = (g * x_tilde).sum((0, 2, 3))[:, None]
        gw = per_tap[:, :, None, None].expand_as(w)
        if mixed is None or not ctx.needs_input_grad[0]:
            return None, gw, None, None, None, None
        gx = mixed.repeat_interleave(window, 2).repeat_interleave(window, 3)
        gx = gx[:, :, pads[0] : pads[0] + size[0], pads[1] : pads[1] + size[1]]
        return gx, gw, None, None, None, None


class FilteredConv2d(nn.Module):
    """A convolution whose backward is filtered; weights are the wrapped one's."""

    def __init__(self, conv: nn.Conv2d, r: int) -> None:
        super().__init__()
        if conv.dilation != (1, 1):
            raise ValueError("the published filter has no dilation")
        self.weight, self.bias, self.r = conv.weight, conv.bias, r
        self.stride, self.padding, self.groups = conv.stride[0], conv.padding[0], conv.groups

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = FilteredConvolution.apply(x, self.weight, self.stride, self.padding, self.groups, self.r)
        return y if self.bias is None else y + self.bias[:, None, None]


def _plain(task: Task) -> tuple[nn.Module, Tensor]:
    return task.model, task.x


def _channels_last(task: Task) -> tuple[nn.Module, Tensor]:
    return task.model.to(memory_format=torch.channels_last), task.x.to(memory_format=torch.channels_last)


def _filtered(task: Task) -> Task:
    for name in task.filtered:
        parent, _, leaf = name.rpartition(".")
        owner = task.model.get_submodule(parent)
        setattr(owner, leaf, FilteredConv2d(task.model.get_submodule(name), task.r))  # type: ignore[arg-type]
    return task


STEPS: dict[str, Callable[[Task], OneStep]] = {
    "eager": lambda task: _training(task, *_plain(task)),
    "eager_channels_last": lambda task: _training(task, *_channels_last(task)),
    "torch_compile": lambda task: _training(task, *_plain(task), optimise=True),
    "published": lambda task: _training(task, *_plain(_filtered(task))),
    "published_channels_last": lambda task: _training(task, *_channels_last(_filtered(task))),
    "published_compile": lambda task: _training(task, *_plain(_filtered(task)), optimise=True),
}
FORWARD: dict[str, Callable[[Task], OneStep]] = {
    "eager": lambda task: _forward(*_plain(task)),
    "eager_channels_last": lambda task: _forward(*_channels_last(task)),
    "torch_compile": lambda task: _forward(*_plain(task), optimise=True),
}


def _forward(model: nn.Module, x: Tensor, optimise: bool = False) -> OneStep:
    model.eval()
    run = torch.compile(model) if optimise else model

    def forward() -> None:
        with torch.inference_mode():
            run(x)

    return forward


def _training(task: Task, model: nn.Module, x: Tensor, optimise: bool = False) -> OneStep:
    """Running statistics frozen, the plan's parameters trained with SGD: the same work as the compiled step's."""
    model.eval()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in task.trained)
    chosen = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(chosen, lr=LEARNING_RATE, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)

    run = torch.compile(model) if optimise else model

    def step() -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(run(x), task.labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step
