"""Layers with a kernel: convolutions and linear layers. Weights stay in ONNX's own order of axes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from gfcompile.frontend.onnx.graph import Node
from gfcompile.frontend.onnx.operator import Operator
from gfcompile.frontend.onnx.windows import Pads, halves, pad, windows_of

_CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def _conv(node: Node, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    windows = windows_of(node, x.shape[2:], weight.shape[2:])
    padding = windows.symmetric
    if padding is None:
        x, padding = pad(x, windows.pads), (0,) * len(windows.kernel)
    convolve = _CONVOLUTIONS[len(windows.kernel)]
    return convolve(x, weight, bias, windows.strides, padding, windows.dilations, node.get("group", 1))


def _conv_transpose(node: Node, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    rank = weight.ndim - 2
    strides, dilations = node.get("strides", [1] * rank), node.get("dilations", [1] * rank)
    extra = node.get("output_padding", [0] * rank)
    pads = _transposed_pads(node, x, weight, strides, dilations, extra)
    convolve, group = _TRANSPOSED[rank], node.get("group", 1)
    # torch takes padding that is symmetric and not negative, and less extra output than a stride or dilation
    if all(b == a >= 0 for b, a in pads) and all(e < max(s, d) for e, s, d in zip(extra, strides, dilations)):
        return convolve(x, weight, bias, strides, [b for b, _ in pads], extra, group, dilations)
    y = convolve(x, weight, None, strides, 0, 0, group, dilations)
    y = pad(y, [(-before, e - after) for (before, after), e in zip(pads, extra)])
    return y if bias is None else y + bias.reshape(-1, *[1] * rank)


def _transposed_pads(
    node: Node, x: Tensor, weight: Tensor, strides: list[int], dilations: list[int], extra: list[int]
) -> Pads:
    """What is cut from each side of the full result."""
    rank = len(strides)
    auto, wanted = node.get("auto_pad", "NOTSET"), node.get("output_shape")
    if wanted is None and auto in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [size * stride for size, stride in zip(x.shape[2:], strides)]
    if wanted is None:
        flat = node.get("pads", [0] * 2 * rank) if auto == "NOTSET" else [0] * 2 * rank
        return tuple(zip(flat[:rank], flat[rank:]))
    full = [
        (size - 1) * s + (k - 1) * d + 1 + e
        for size, s, k, d, e in zip(x.shape[2:], strides, weight.shape[2:], dilations, extra)
    ]
    # ONNX splits the other way round here: the odd one goes before unless SAME_UPPER
    other = "SAME_UPPER" if auto == "SAME_UPPER" else "SAME_LOWER"
    return tuple(halves(max(f - w, 0), other) for f, w in zip(full, wanted[-rank:]))


def _gemm(node: Node, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    alpha, beta = node.get("alpha", 1.0), node.get("beta", 1.0)
    if node.get("transA", 0):
        a = a.t()
    if node.get("transB", 0):
        if alpha == beta == 1 and (c is None or c.shape == b.shape[:1]):
            return F.linear(a, b, c)
        b = b.t()
    if c is None:
        return a @ b if alpha == 1 else alpha * (a @ b)
    return torch.addmm(c, a, b, alpha=alpha, beta=beta)


def _unknown_rank(node: Node) -> str | None:
    kernel = node.get("kernel_shape")
    return None if kernel is None or len(kernel) <= 3 else f"it is a {len(kernel)}-D convolution"


_LAYER = {1: "weight", 2: "bias"}
OPERATORS = {
    "Conv": Operator(_conv, weights=_LAYER, refuse=_unknown_rank),
    "ConvTranspose": Operator(_conv_transpose, weights=_LAYER, refuse=_unknown_rank),
    "Gemm": Operator(_gemm, weights=_LAYER),
    "MatMul": Operator(lambda node, a, b: torch.matmul(a, b), weights={0: "weight", 1: "weight"}),
}
