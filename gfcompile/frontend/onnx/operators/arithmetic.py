"""Element-wise arithmetic, comparisons and logic, and matrix products without a layer's attributes."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from gfcompile.frontend.onnx.graph import Node
from gfcompile.frontend.onnx.operator import Operator, plain

Number: TypeAlias = Any  # a Tensor or a Python number


def _is_float(*values: Number) -> bool:
    return any(value.is_floating_point() if isinstance(value, Tensor) else isinstance(value, float) for value in values)


def _div(node: Node, left: Number, right: Number) -> Number:
    """Integers are divided towards zero."""
    if _is_float(left, right):
        return left / right
    return torch.div(*_tensors(left, right), rounding_mode="trunc")


def _mod(node: Node, left: Number, right: Number) -> Tensor:
    return (torch.fmod if node.get("fmod", 0) else torch.remainder)(*_tensors(left, right))


def _pow(node: Node, base: Number, exponent: Number) -> Tensor:
    """A whole exponent, often stored as a float, keeps the derivative finite at zero."""
    if isinstance(exponent, float) and exponent.is_integer():
        exponent = int(exponent)
    result = torch.pow(base, exponent)
    return result.to(base.dtype) if isinstance(base, Tensor) else result


def _extreme(pick: Callable[[Tensor, Tensor], Tensor]) -> Operator:
    def run(node: Node, *values: Number) -> Number:
        return functools.reduce(lambda left, right: pick(*_tensors(left, right)), values)

    return Operator(run, numbers=True)


def _sum(node: Node, *values: Number) -> Number:
    return functools.reduce(operator.add, values)


def _mean(node: Node, *values: Number) -> Number:
    return _sum(node, *values) / len(values)


def _where(node: Node, condition: Number, chosen: Number, other: Number) -> Tensor:
    if not isinstance(condition, Tensor):
        condition = torch.tensor(condition)
    if not isinstance(chosen, Tensor) and not isinstance(other, Tensor):
        chosen = torch.tensor(chosen)
    return torch.where(condition, chosen, other)


def _clip(node: Node, x: Tensor, low: Number | None = None, high: Number | None = None) -> Tensor:
    low, high = node.get("min", low), node.get("max", high)
    if isinstance(low, float) and isinstance(high, float):
        return torch.nn.functional.hardtanh(x, low, high)  # as ReLU6 differentiates, which this mostly is
    return x if low is None and high is None else torch.clamp(x, low, high)


def _tensors(*values: Number) -> list[Tensor]:
    """For the torch functions that take no Python numbers; a number takes the type of the tensor beside it."""
    like = next(value for value in values if isinstance(value, Tensor))
    return [value if isinstance(value, Tensor) else torch.full((), value, dtype=like.dtype) for value in values]


def _einsum(node: Node, *operands: Tensor) -> Tensor:
    return torch.einsum(node.get("equation"), *operands)


def _binary(function: Callable[[Any, Any], Any]) -> Operator:
    return plain(function, numbers=True)


OPERATORS = {
    "Add": _binary(operator.add),
    "Sub": _binary(operator.sub),
    "Mul": _binary(operator.mul),
    "Div": Operator(_div, numbers=True),
    "Mod": Operator(_mod, numbers=True),
    "Pow": Operator(_pow, numbers=True),
    "Min": _extreme(torch.minimum),
    "Max": _extreme(torch.maximum),
    "Sum": Operator(_sum, numbers=True),
    "Mean": Operator(_mean, numbers=True),
    "Equal": _binary(operator.eq),
    "Greater": _binary(operator.gt),
    "GreaterOrEqual": _binary(operator.ge),
    "Less": _binary(operator.lt),
    "LessOrEqual": _binary(operator.le),
    "And": plain(torch.logical_and),
    "Or": plain(torch.logical_or),
    "Xor": plain(torch.logical_xor),
    "Not": plain(torch.logical_not),
    "Where": Operator(_where, numbers=True),
    "Clip": Operator(_clip, numbers=True),
    "Abs": plain(torch.abs),
    "Neg": plain(torch.neg),
    "Sign": plain(torch.sign),
    "Floor": plain(torch.floor),
    "Ceil": plain(torch.ceil),
    "Round": plain(torch.round),
    "Sqrt": plain(torch.sqrt),
    "Reciprocal": plain(torch.reciprocal),
    "Exp": plain(torch.exp),
    "Log": plain(torch.log),
    "Erf": plain(torch.erf),
    "Sin": plain(torch.sin),
    "Cos": plain(torch.cos),
    "Tan": plain(torch.tan),
    "Asin": plain(torch.asin),
    "Acos": plain(torch.acos),
    "Atan": plain(torch.atan),
    "Sinh": plain(torch.sinh),
    "Cosh": plain(torch.cosh),
    "IsNaN": plain(torch.isnan),
    "Einsum": Operator(_einsum),
}
