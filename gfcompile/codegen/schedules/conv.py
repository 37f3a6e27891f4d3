"""Convolutions: accumulators of a register tile, epilogue at the tile, padding made per block of rows.

A task is a block of output rows, whose input stays in the core's cache while all weights pass over it; or, where that
takes fewer bytes from memory, a block of output channels, whose weights stay while the whole map passes under them.
"""

from __future__ import annotations

from math import prod

from tvm.ir.expr import TensorLoad
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV

from gfcompile.codegen.schedules.blocks import Block, access, ancestors, find_block, list_blocks
from gfcompile.codegen.schedules.choices import Choices, nearest
from gfcompile.codegen.schedules.inline import inline_injective
from gfcompile.codegen.schedules.loops import SERIAL_BELOW, parallelize
from gfcompile.codegen.schedules.reduction import schedule_rest
from gfcompile.codegen.schedules.tile import (
    Tile,
    bring_tail,
    choose_tile,
    close_tile,
    divisors,
    open_tile,
    pick_tile,
    pick_turns,
    pick_width,
    vector_width,
)
from gfcompile.targets import Target

_FEW_TASKS = 4
_UNROLLED_REDUCTION = 4
_ROW_BLOCKS = 6  # options
_ORDERS = ("rows", "channels")
_PADDINGS = ("copied", "tested")  # a padded copy of a task's rows, or a look at every pixel whether it is there


def apply(sch: Schedule, target: Target, choices: Choices) -> bool:
    """C[n,i,j,o] += x[n, i.., j.., c] * w[o/kb, .., c, o%kb]."""
    anchors = [block for block in list_blocks(sch) if is_conv(block)]
    if len(anchors) != 1:
        return False
    (anchor,) = anchors
    width = pick_width(choices, anchor, target)
    if width is None or width == 1:
        return False
    proposed = choose_tile(anchor.spatial, width, [2, 1, 0], target)
    tile = pick_tile(choices, anchor.spatial, width, [2, 1, 0], target, proposed)
    tile_rows(sch, anchor, tile, target, choices, channels_outside=True, unroll_reduce=_UNROLLED_REDUCTION)
    return True


def is_conv(block: Block) -> bool:
    """A map of [N,H,W,C]: one operand moves with every pixel, the other with the output channel only."""
    factors = block.factors
    if factors is None or len(block.spatial) != 4 or len(block.reduce) != 3:
        return False
    _, weights = factors
    n, i, j, o = block.spatial_vars
    still = all(access(weights, var, 2) == "same" for var in (n, i, j))
    return still and len(weights.indices) == 5 and access(weights, o, 2) in ("unit", "gather")


def tile_rows(
    sch: Schedule,
    anchor: Block,
    tile: Tile,
    target: Target,
    choices: Choices,
    channels_outside: bool,
    unroll_reduce: int,
) -> None:
    """Arrange the tiles of a [N,H,W,C] anchor, pull its padding to the row block, schedule what is left."""
    stages = ancestors(sch, anchor)
    factors = anchor.factors
    assert factors is not None  # the rule looked
    pixels, weights = factors
    inline_injective(sch, keep=stages)
    pad = next((name for name in stages if find_block(sch, name).buffer.same_as(pixels.source)), None)
    if pad is not None and not find_block(sch, pad).is_injective:
        pad = None
    if pad is not None and choices.pick("padding", _PADDINGS, "copied") == "tested":
        sch.compute_inline(find_block(sch, pad).rv)
        pad = None
    anchor, tail = bring_tail(sch, find_block(sch, anchor.name))
    (b, i, j, o), inner = open_tile(sch, tail, tile)
    done = {anchor.name, tail.name}
    rows = anchor.spatial[1] // tile.sizes[1]
    block_rows = _rows_per_task(anchor, pixels, rows, tile, target)
    tasks = anchor.spatial[0] // tile.sizes[0] * (rows // block_rows)
    channels_first = channels_outside and _prefers_channels(
        pixels, weights, tasks, anchor.spatial[3] // tile.sizes[3], target
    )
    order = _ORDERS[channels_first or tasks < _FEW_TASKS or tile.sizes[0] > 1]
    if tile.sizes[0] == 1:
        order = choices.pick("order", _ORDERS, order)
    turns = pick_turns(choices, anchor.reduce[-1])
    if order == "channels":
        sch.reorder(o, b, i, j)
        parallelize(sch, [o, b, i], anchor.work)
        close_tile(sch, anchor, j, inner, tile, unroll_reduce, turns)
    else:
        block_rows = choices.pick("rows", nearest(divisors(rows, rows), _ROW_BLOCKS, block_rows), block_rows)
        io, ii = sch.split(i, [None, block_rows])
        inside = (o, ii, j) if channels_outside else (ii, j, o)
        sch.reorder(b, io, *inside)
        task = sch.fuse(b, io)
        if anchor.work >= SERIAL_BELOW:
            sch.parallel(task)
        close_tile(sch, anchor, inside[-1], inner, tile, unroll_reduce, turns)
        if pad is not None:
            _pad_at(sch, find_block(sch, pad), task, target)
            done.add(pad)
    schedule_rest(sch, done, target)


def _prefers_channels(pixels: TensorLoad, weights: TensorLoad, tasks: int, blocks: int, target: Target) -> bool:
    """Whether the map, read once a block of channels, is less to read than the weights, once a task."""
    map_bytes, weight_bytes = (4 * prod(int(d) for d in load.source.shape) for load in (pixels, weights))
    return weight_bytes > target.cache // 2 and weight_bytes * tasks > map_bytes * blocks


def _rows_per_task(anchor: Block, pixels: TensorLoad, rows: int, tile: Tile, target: Target) -> int:
    """Output tile rows whose input fits the budget: a divisor of all of them."""
    _, height, width, channels = (int(d) for d in pixels.source.shape)
    bytes_a_row = width * channels * 4 * max(1, height // anchor.spatial[1]) * tile.sizes[1]
    return max(divisors(rows, max(1, target.cache // 2 // bytes_a_row)))


def _pad_at(sch: Schedule, pad: Block, task: LoopRV, target: Target) -> None:
    sch.compute_at(pad.rv, task, preserve_unit_loops=True)
    last = sch.get_loops(pad.rv)[-1]
    width = vector_width(pad, target)
    if width is not None and width > 1:
        sch.vectorize(sch.split(last, [None, width])[1])
