"""`grid_sample`: the pixels around each place of a grid, gathered and weighed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gfcompile.errors import UserError

aten = torch.ops.aten
Function = Callable[..., Any]
BILINEAR, NEAREST = 0, 1  # PyTorch's numbers
ZEROS, BORDER, REFLECTION = 0, 1, 2


def _grid_sample(x: Tensor, grid: Tensor, mode: int, padding: int, align: bool) -> Tensor:
    """x [N, C, H, W] at the places of grid [N, h, w, 2], each coordinate between -1 and 1."""
    if x.dim() != 4 or mode not in (BILINEAR, NEAREST):
        raise UserError("model: grid_sample of volumes, or in mode 'bicubic', is not compiled; use bilinear or nearest")
    height, width = x.shape[2:]
    col = _place(grid[..., 0], width, padding, align)
    row = _place(grid[..., 1], height, padding, align)
    if mode == NEAREST:
        return _pixels(x, row.detach().round(), col.detach().round())
    top, left = row.detach().floor(), col.detach().floor()
    down, right = (row - top).unsqueeze(1), (col - left).unsqueeze(1)  # [N, 1, h, w]
    upper = _pixels(x, top, left) * (1 - right) + _pixels(x, top, left + 1) * right
    lower = _pixels(x, top + 1, left) * (1 - right) + _pixels(x, top + 1, left + 1) * right
    return upper * (1 - down) + lower * down


def _place(at: Tensor, size: int, padding: int, align: bool) -> Tensor:
    """A coordinate of the grid in pixels."""
    place = (at + 1) * ((size - 1) / 2) if align else ((at + 1) * size - 1) / 2
    if padding == REFLECTION:
        low, span = (0.0, size - 1.0) if align else (-0.5, float(size))
        if span == 0:
            return place * 0
        distance = (place - low).abs()
        folds = (distance / span).detach().floor()
        rest = distance - folds * span
        place = torch.where(folds % 2 == 0, rest, span - rest) + low
    return place if padding == ZEROS else place.clamp(0, size - 1)


def _pixels(x: Tensor, row: Tensor, col: Tensor) -> Tensor:
    """[N, C, h, w]: the pixels at whole rows and columns, zero outside."""
    samples, channels, height, width = x.shape
    inside = (row >= 0) & (row < height) & (col >= 0) & (col < width)
    where = row.clamp(0, height - 1).long() * width + col.clamp(0, width - 1).long()  # [N, h, w]
    index = where.reshape(samples, 1, -1).expand(samples, channels, -1)
    held = x.flatten(2).gather(2, index).reshape(samples, channels, *row.shape[1:])
    return torch.where(inside.unsqueeze(1), held, 0.0)


SAMPLING: dict[Any, Function] = {
    aten.grid_sampler.default: _grid_sample,
    aten.grid_sampler_2d.default: _grid_sample,
}
