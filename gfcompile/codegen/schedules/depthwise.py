"""Depthwise convolutions: a few pixels of one channel vector at a time, padding made per block of rows."""

from __future__ import annotations

from tvm.s_tir import Schedule

from gfcompile.codegen.schedules.blocks import Block, access, list_blocks
from gfcompile.codegen.schedules.choices import Choices
from gfcompile.codegen.schedules.conv import tile_rows
from gfcompile.codegen.schedules.tile import accumulators, choose_tile, pick_tile, pick_width
from gfcompile.targets import Target

_UNROLLED_TAPS = 9


def apply(sch: Schedule, target: Target, choices: Choices) -> bool:
    """C[n,i,j,c] += x[n, i.., j.., c] * w[.., c]: both operands run along the channels."""
    anchors = [block for block in list_blocks(sch) if is_depthwise(block)]
    if len(anchors) != 1:
        return False
    (anchor,) = anchors
    width = pick_width(choices, anchor, target)
    if width is None or width == 1:
        return False
    most = most_pixels(anchor.reduce[-1], target)
    proposed = choose_tile(anchor.spatial, width, [2], target, most_vectors=1, most=most)
    tile = pick_tile(choices, anchor.spatial, width, [2, 1], target, proposed, most_vectors=2)
    tile_rows(sch, anchor, tile, target, choices, channels_outside=False, unroll_reduce=_UNROLLED_TAPS)
    return True


def most_pixels(taps: int, target: Target) -> int:
    """Of a tile. Where operands must be loaded first, a row of its input (pixels + taps) and of the weights is in
    registers beside the accumulators."""
    usual = accumulators(target)
    return usual if target.has_memory_operands else min(usual, (target.registers - 2 * taps) // 2)


def is_depthwise(block: Block) -> bool:
    """A map of [N,H,W,C] from two operands that both follow C, reduced over taps."""
    factors = block.factors
    if factors is None or len(block.spatial) != 4 or len(block.reduce) != 2:
        return False
    return all(access(load, block.spatial_vars[-1], 2) == "unit" for load in factors)
