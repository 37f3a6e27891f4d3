"""Normalisation. A BatchNormalization of constants and a Dropout are modules of their own (`module.py`)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from gfcompile.frontend.onnx.graph import Node
from gfcompile.frontend.onnx.operator import Operator

_AFFINE = {1: "weight", 2: "bias"}


def _batch_norm(node: Node, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    """For computed parameters, always with the statistics given."""
    return F.batch_norm(x, mean, var, scale, bias, eps=node.get("epsilon", 1e-5))


def _instance_norm(node: Node, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    return F.instance_norm(x, weight=scale, bias=bias, eps=node.get("epsilon", 1e-5))


def _group_norm(node: Node, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """Up to opset 20 scale and bias had one value per group."""
    groups, eps = node.get("num_groups"), node.get("epsilon", 1e-5)
    if node.opset >= 21:
        return F.group_norm(x, groups, scale, bias, eps)
    repeats = x.shape[1] // groups
    return F.group_norm(x, groups, scale.repeat_interleave(repeats), bias.repeat_interleave(repeats), eps)


def _layer_norm(node: Node, x: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
    shape = x.shape[node.get("axis", -1) % x.ndim :]
    eps = node.get("epsilon", 1e-5)
    if scale.shape == shape and (bias is None or bias.shape == shape):
        return F.layer_norm(x, shape, scale, bias, eps)
    y = F.layer_norm(x, shape, eps=eps) * scale
    return y if bias is None else y + bias


def _rms_norm(node: Node, x: Tensor, scale: Tensor) -> Tensor:
    axes = list(range(node.get("axis", -1) % x.ndim, x.ndim))
    return x * torch.rsqrt((x * x).mean(axes, keepdim=True) + node.get("epsilon", 1e-5)) * scale


def _lrn(node: Node, x: Tensor) -> Tensor:
    size, channels = node.get("size"), x.shape[1]
    before = (size - 1) // 2
    squares = F.pad(x * x, [0, 0] * (x.ndim - 2) + [before, size - 1 - before])
    total = sum(squares.narrow(1, offset, channels) for offset in range(size))
    return x / (node.get("bias", 1.0) + node.get("alpha", 1e-4) / size * total) ** node.get("beta", 0.75)


def _mean_variance(node: Node, x: Tensor) -> Tensor:
    axes = node.get("axes", [0, 2, 3])
    centred = x - x.mean(axes, keepdim=True)
    return centred / (torch.sqrt((centred * centred).mean(axes, keepdim=True)) + 1e-9)


def _lp_normalization(node: Node, x: Tensor) -> Tensor:
    return x / torch.linalg.vector_norm(x, node.get("p", 2), dim=node.get("axis", -1), keepdim=True)


OPERATORS = {
    "BatchNormalization": Operator(
        _batch_norm, weights={**_AFFINE, 3: "running_mean", 4: "running_var"},
        refuse=lambda node: None if node.get("spatial", 1) else "it has one mean a pixel ('spatial' is 0)",
    ),
    "Dropout": Operator(lambda node, x, *_: x, host=frozenset({1, 2})),
    "InstanceNormalization": Operator(_instance_norm, weights=_AFFINE),
    "GroupNormalization": Operator(_group_norm, weights=_AFFINE),
    "LayerNormalization": Operator(_layer_norm, weights=_AFFINE),
    "RMSNormalization": Operator(_rms_norm, weights={1: "weight"}),
    "LRN": Operator(_lrn),
    "MeanVarianceNormalization": Operator(_mean_variance),
    "LpNormalization": Operator(_lp_normalization),
}  # fmt: skip
