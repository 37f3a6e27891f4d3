"""Resizing and padding along one axis: a sparse linear map (`axis_maps`), whose gradient is its transpose."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from gfcompile.geometry.axis_maps import matrix


@custom_op("gf::axis_map", mutates_args=())
def axis_map(x: Tensor, axis: int, size: int, kind: str, settings: list[float], transposed: bool) -> Tensor:
    """Multiply `axis` of x by the map's matrix, or by its transpose; `size` is the axis' new length."""
    length = x.shape[axis]
    small, large = (size, length) if transposed else (length, size)
    weights = matrix(kind, tuple(settings), small, large).to(x.dtype)
    mapped = torch.matmul(x.movedim(axis, -1), weights if transposed else weights.T)
    return mapped.movedim(-1, axis).contiguous()


@axis_map.register_fake
def _(x: Tensor, axis: int, size: int, kind: str, settings: list[float], transposed: bool) -> Tensor:
    shape = list(x.shape)
    shape[axis] = size
    return x.new_empty(shape)


def _keep_call(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, axis, _, *rest = inputs
    ctx.call = (axis, x.shape[axis], *rest)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    axis, length, kind, settings, transposed = ctx.call
    back = torch.ops.gf.axis_map(grad, axis, length, kind, settings, not transposed)
    return back, None, None, None, None, None


axis_map.register_autograd(_backward, setup_context=_keep_call)
