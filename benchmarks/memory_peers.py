"""What the compiled step's memory is compared with: PyTorch eager, exact and with the plain gradient filter.

Run as a process of its own, one a peer: a `Task` as JSON on standard input, `Measured` as JSON on standard output.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.allocations import kept_bytes, peak_bytes
from tests.models import randomise_statistics
from tests.models.densenet import densenet_like
from tests.models.mobilenet import mobilenet_v2
from tests.models.mobilenet_v3 import mobilenet_v3_like
from tests.models.resnet import ResNet, resnet18

Pair = tuple[int, int]
LEARNING_RATE = 0.01
MODELS: dict[str, Callable[[], nn.Module]] = {
    "resnet18": resnet18,
    "mobilenet_v2": mobilenet_v2,
    "mobilenet_v3_like": mobilenet_v3_like,
    "densenet_like": densenet_like,
}
NARROW: dict[str, Callable[[], nn.Module]] = {
    "resnet18": lambda: ResNet((1, 1, 1, 1), num_classes=10, width=8),
    "mobilenet_v2": lambda: mobilenet_v2(num_classes=10, width_mult=0.25),
    "mobilenet_v3_like": lambda: mobilenet_v3_like(num_classes=10, width=0.25),
    "densenet_like": lambda: densenet_like(num_classes=10, width=16, depths=(2, 2)),
}


@dataclass(frozen=True)
class Task:
    """One training to be measured. `patches` maps a filtered convolution to its r; `narrow` takes the tests' models."""

    model: str
    narrow: bool
    batch: int
    size: int
    trained: tuple[str, ...]
    batchnorm: str
    patches: dict[str, int]
    channels_last: bool = False


@dataclass(frozen=True)
class Measured:
    """Of one training step, the parameters, buffers, optimizer state and batch aside."""

    loss: float
    peak_bytes: int
    kept_bytes: int


class FilteredConvolution(torch.autograd.Function):
    """Section 1 of docs/method.md, unbiased, where `why_not` lets it; only the patch sums and the weight are saved.

    `peers.FilteredConvolution` follows the published code's formulas; this one computes what gfcompile computes. A
    patch that overhangs the output by o rows overhangs the input by o*s: pooling's padding, so no padded copy is made.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w: Tensor, b: Tensor | None, stride: Pair, padding: Pair, groups: int, r: int
    ) -> Tensor:
        y = F.conv2d(x, w, b, stride, padding, 1, groups)
        overhang = [ceil((ceil(size / r) * r - size) / 2) for size in y.shape[2:]]
        window = [r * s for s in stride]
        pads = [o * s for o, s in zip(overhang, stride, strict=True)]
        x_tilde = F.avg_pool2d(x, window, padding=pads, ceil_mode=True, divisor_override=1)  # [N, Ci, P, Q]
        ctx.save_for_backward(x_tilde, w)
        ctx.grids = (r, overhang, window, pads, x.shape[2:])
        return y

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> tuple[Tensor | None, ...]:
        x_tilde, w = ctx.saved_tensors
        r, overhang, window, pads, size = ctx.grids
        scale = r * r / (window[0] * window[1])  # 1 / (s_h * s_w)
        g = F.avg_pool2d(gy, r, padding=overhang, ceil_mode=True, count_include_pad=False) * scale  # [N, Co, P, Q]
        is_depthwise = w.shape[1] != x_tilde.shape[1]
        per_tap = (g * x_tilde).sum((0, 2, 3))[:, None] if is_depthwise else torch.einsum("nopq,nipq->oi", g, x_tilde)
        gw = per_tap[:, :, None, None].expand_as(w)
        gb = gy.sum((0, 2, 3)) if ctx.needs_input_grad[2] else None
        if not ctx.needs_input_grad[0]:
            return None, gw, gb, None, None, None, None
        summed = w.sum((2, 3))  # [Co, Ci/groups]
        q = summed[:, :1, None] * g if is_depthwise else torch.einsum("oi,nopq->nipq", summed, g)
        gx = F.interpolate(q, scale_factor=window, mode="nearest")
        gx = gx[:, :, pads[0] : pads[0] + size[0], pads[1] : pads[1] + size[1]]
        return gx, gw, gb, None, None, None, None


class FilteredConv2d(nn.Module):
    """A convolution whose backward is filtered; its parameters keep their names."""

    def __init__(self, conv: nn.Conv2d, r: int) -> None:
        super().__init__()
        reason = why_not(conv, r)
        if reason is not None:
            raise ValueError(f"the plain filter of this benchmark cannot replace {conv}: {reason}")
        self.weight, self.bias, self.r = conv.weight, conv.bias, r
        self.geometry = (conv.stride, conv.padding, conv.groups)

    def forward(self, x: Tensor) -> Tensor:
        return FilteredConvolution.apply(x, self.weight, self.bias, *self.geometry, self.r)


def why_not(conv: nn.Conv2d, r: int) -> str | None:
    """Geometries in which a patch's input window is not simply its output window times the stride."""
    if conv.groups != 1 and not conv.groups == conv.in_channels == conv.out_channels:
        return "groups that are neither 1 nor depthwise"
    if conv.dilation != (1, 1) or (r == 1 and conv.kernel_size != (1, 1)):
        return "taps that land in different patches"
    if any(k % 2 == 0 or p != k // 2 for k, p in zip(conv.kernel_size, conv.padding, strict=True)):
        return "padding other than half of an odd kernel"
    return None


def filter_convolutions(model: nn.Module, patches: dict[str, int]) -> None:
    """Put the plain filter in place of the named convolutions."""
    for name, r in patches.items():
        model.set_submodule(name, FilteredConv2d(model.get_submodule(name), r))


def build_model(name: str, narrow: bool) -> nn.Module:
    torch.manual_seed(0)
    return randomise_statistics((NARROW if narrow else MODELS)[name](), 0)


def measure(task: Task) -> Measured:
    """Train one step to warm up and one to measure; before them a forward pass shows what is kept."""
    torch.set_num_threads(1)  # the profiler sees the calling thread's allocations
    model = build_model(task.model, task.narrow).eval()
    filter_convolutions(model, task.patches)
    _prepare(model, task)
    layout = torch.channels_last if task.channels_last else torch.contiguous_format
    model = model.to(memory_format=layout)
    x = torch.randn(task.batch, 3, task.size, task.size).to(memory_format=layout)
    labels = torch.arange(task.batch) % 10
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=LEARNING_RATE)

    def loss() -> Tensor:
        return F.cross_entropy(model(x), labels)

    def step() -> None:
        loss().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    kept = kept_bytes(loss, [x, labels, *model.parameters(), *model.buffers()])
    with torch.no_grad():
        first_loss = loss().item()
    step()
    return Measured(first_loss, peak_bytes(step), kept)


def _prepare(model: nn.Module, task: Task) -> None:
    """Gradients for the trained parameters alone, so that what lies before the first of them keeps nothing."""
    unknown = set(task.trained) - {name for name, _ in model.named_parameters()}
    if unknown:
        raise ValueError(f"{task.model} has no parameters named {sorted(unknown)}")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in task.trained)
    if task.batchnorm == "train":
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.train()


def main() -> int:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not be taken for an answer
    print(json.dumps(asdict(measure(Task(**json.load(sys.stdin))))), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
