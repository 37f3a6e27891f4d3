"""Activation functions and softmax."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from gfcompile.frontend.onnx.graph import Node
from gfcompile.frontend.onnx.operator import Operator, plain


def _leaky_relu(node: Node, x: Tensor) -> Tensor:
    return F.leaky_relu(x, node.get("alpha", 0.01))


def _prelu(node: Node, x: Tensor, slope: Tensor) -> Tensor:
    """torch wants one slope per channel; ONNX's slope broadcasts from the right, so [C, 1, 1] is the same thing."""
    channels = x.shape[1] if x.ndim > 1 else 1
    per_channel = slope.ndim == x.ndim - 1 and slope.shape[:1] == (channels,) and slope.numel() == channels
    if slope.numel() == 1 or per_channel:
        return F.prelu(x, slope.reshape(-1))
    return torch.where(x < 0, x * slope, x)


def _elu(node: Node, x: Tensor) -> Tensor:
    return F.elu(x, node.get("alpha", 1.0))


def _celu(node: Node, x: Tensor) -> Tensor:
    return F.celu(x, node.get("alpha", 1.0))


def _selu(node: Node, x: Tensor) -> Tensor:
    alpha, gamma = node.get("alpha", 1.6732632423543772), node.get("gamma", 1.0507009873554805)
    return gamma * F.elu(x, alpha)


def _gelu(node: Node, x: Tensor) -> Tensor:
    return F.gelu(x, approximate=node.get("approximate", "none"))


def _hard_sigmoid(node: Node, x: Tensor) -> Tensor:
    alpha, beta = node.get("alpha", 0.2), node.get("beta", 0.5)
    if math.isclose(alpha, 1 / 6, rel_tol=1e-6) and beta == 0.5:
        return F.hardsigmoid(x)
    return F.hardtanh(alpha * x + beta, 0.0, 1.0)


def _thresholded_relu(node: Node, x: Tensor) -> Tensor:
    return F.threshold(x, node.get("alpha", 1.0), 0.0)


def _shrink(node: Node, x: Tensor) -> Tensor:
    bias, limit = node.get("bias", 0.0), node.get("lambd", 0.5)
    return torch.where(x > limit, x - bias, torch.where(x < -limit, x + bias, 0.0))


def _swish(node: Node, x: Tensor) -> Tensor:
    return x * torch.sigmoid(node.get("alpha", 1.0) * x)


def _softmax(function: Callable[..., Tensor]) -> Operator:
    def run(node: Node, x: Tensor) -> Tensor:
        """Up to opset 12 all axes from `axis` on are one."""
        if node.opset >= 13:
            return function(x, dim=node.get("axis", -1))
        axis = node.get("axis", 1) % x.ndim
        if axis == x.ndim - 1:
            return function(x, dim=axis)
        return function(x.flatten(axis), dim=axis).reshape(x.shape)

    return Operator(run)


OPERATORS = {
    "Relu": plain(F.relu),
    "LeakyRelu": Operator(_leaky_relu),
    "PRelu": Operator(_prelu, weights={1: "weight"}),
    "Elu": Operator(_elu),
    "Celu": Operator(_celu),
    "Selu": Operator(_selu),
    "Gelu": Operator(_gelu),
    "Mish": plain(F.mish),
    "HardSwish": plain(F.hardswish),
    "HardSigmoid": Operator(_hard_sigmoid),
    "Sigmoid": plain(torch.sigmoid),
    "Tanh": plain(torch.tanh),
    "Softplus": plain(F.softplus),
    "Softsign": plain(F.softsign),
    "Swish": Operator(_swish),
    "Shrink": Operator(_shrink),
    "ThresholdedRelu": Operator(_thresholded_relu),
    "Softmax": _softmax(F.softmax),
    "LogSoftmax": _softmax(F.log_softmax),
}
