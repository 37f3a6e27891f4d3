"""Winograd convolutions: a task takes a block of tiles through all stages while they are in its cache.

The block's inputs are transformed, multiplied by the weights of each position of a tile, and transformed back straight
into the output, epilogue included. Where there are few tiles and many weights, all inputs are transformed first, and a
task is a panel of output channels: so no weight is transformed twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import ceil, gcd

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV

from gfcompile.codegen.schedules.blocks import Block, find_block, list_blocks, same_point, writes_output
from gfcompile.codegen.schedules.choices import Choices
from gfcompile.codegen.schedules.inline import inline_injective
from gfcompile.codegen.schedules.reduction import schedule_rest
from gfcompile.codegen.schedules.tile import (
    Tile,
    choose_tile,
    cycles_a_product,
    divisors,
    pick_tile,
    pick_turns,
)
from gfcompile.targets import Target

_BAND, _GATHER, _DOWN, _INPUT, _PRODUCT, _UP, _OUTPUT = STAGES = tuple(
    f"winograd_{stage}" for stage in ("band", "tile", "down", "input", "product", "up", "output")
)
_WEIGHT_DOWN, _WEIGHT = "winograd_weight_down", "winograd_weight"  # of a trained layer: transformed in every step
_TRANSFORM_CYCLES = 2.5  # for a vector of a tile's values, through one transform
_SHARED_BYTES_A_CYCLE = 16  # of weights, from the cache behind a core's own
_MOST_TILES = 128
_MOST_CACHES = 5  # of a task's transformed inputs, which every panel of outputs reads again
_MOST_SHARED_CACHES = 10  # of all transformed inputs, where all tasks read them
_PANEL_VECTORS = (2, 4)
_OFFERED_BLOCKINGS = 12
_UNROLLED_REDUCTION = 4
_LINE, _LINES = 16, 1024  # values of a cache line, and of as many lines as a way holds: where positions would collide


@dataclass(frozen=True)
class Shape:
    """What is computed: tiles of `span` x `span` inputs on a grid of [images, rows, cols]."""

    images: int
    rows: int
    cols: int
    inputs: int
    outputs: int
    span: int
    width: int  # lanes
    prepared: bool  # whether the weights come transformed

    @property
    def edge(self) -> int:
        """Outputs along one edge of a tile."""
        return self.span - 2

    @property
    def tiles(self) -> int:
        """Tiles of the whole batch."""
        return self.images * self.rows * self.cols


@dataclass(frozen=True)
class Blocking:
    """What a task takes: `images` times `rows` of tiles, and one of `parts` of the output channels.

    `shared`: it takes all tiles, and their inputs are transformed for all tasks before these begin.
    """

    images: int
    rows: int
    parts: int
    shared: bool = False


def apply(sch: Schedule, target: Target, choices: Choices) -> bool:
    """The stages of `kernels.winograd_conv2d`, with or without an epilogue."""
    if not set(STAGES) <= {block.name for block in list_blocks(sch)}:
        return False
    stages = _stages(sch)
    inline_injective(sch, keep=stages)
    _take_epilogue(sch, stages)
    shape = _read_shape(sch, target, choices, _WEIGHT not in stages)
    blocking = _pick_blocking(choices, shape, target)
    plane = _product_plane(shape, blocking)
    tile = pick_tile(choices, plane, shape.width, [0], target, choose_tile(plane, shape.width, [0], target))
    turns = pick_turns(choices, shape.inputs, max(divisors(shape.inputs, _UNROLLED_REDUCTION)))
    tasks, panels = _arrange_output(sch, shape, blocking, tile)
    _arrange_product(sch, panels, tile, shape, turns)
    _arrange_input(sch, None if blocking.shared else tasks, shape)
    if not shape.prepared:
        _arrange_weights(sch, panels, shape)
    for name in (_UP, _DOWN, _GATHER):
        sch.set_scope(find_block(sch, name).rv, 0, "local")
    for name, axis in ((_INPUT, 1), *([] if shape.prepared else [(_WEIGHT, 0)])):
        sch.storage_align(find_block(sch, name).rv, 0, axis, _LINES, _LINE)
    schedule_rest(sch, stages, target)
    return True


def _stages(sch: Schedule) -> list[str]:
    """The convolution's own blocks, its epilogue apart."""
    return [block.name for block in list_blocks(sch) if block.name in (*STAGES, _WEIGHT_DOWN, _WEIGHT)]


def choose_blocking(shape: Shape, target: Target) -> Blocking:
    """The least time of the busiest core, by a model: products, transforms, and the weights that every task reads."""
    return _list_blockings(shape, target, _MOST_TILES)[0]


def _pick_blocking(choices: Choices, shape: Shape, target: Target) -> Blocking:
    """A choice among the best, of larger blocks too than the model is trusted with."""
    proposed = choose_blocking(shape, target)
    offered = _list_blockings(shape, target, 2 * _MOST_TILES)[:_OFFERED_BLOCKINGS]
    options = {_as_option(each): each for each in (proposed, *offered)}
    return options[choices.pick("block", list(options), _as_option(proposed))]


def _as_option(blocking: Blocking) -> tuple[int, int, int, int]:
    return blocking.images, blocking.rows, blocking.parts, int(blocking.shared)


def _list_blockings(shape: Shape, target: Target, most_tiles: int) -> list[Blocking]:
    """Best first."""
    whole_rows = [(1, rows) for rows in divisors(shape.rows, shape.rows)]
    whole_images = [(images, shape.rows) for images in divisors(shape.images, shape.images)]
    parts = divisors(shape.outputs // shape.width, target.cores)
    candidates = [Blocking(*block, part) for block, part in product((*whole_rows, *whole_images), parts)]
    bytes_a_tile = 4 * shape.span**2 * shape.inputs
    most = min(most_tiles, _MOST_CACHES * target.cache // bytes_a_tile)
    small = [each for each in candidates if each.images * each.rows * shape.cols <= most]
    if shape.tiles * bytes_a_tile <= _MOST_SHARED_CACHES * target.cache:
        small += [
            Blocking(shape.images, shape.rows, shape.outputs // (vectors * shape.width), shared=True)
            for vectors in _PANEL_VECTORS
            if shape.outputs % (vectors * shape.width) == 0
        ]
    return sorted(small or candidates[:1], key=lambda blocking: _cycles(shape, blocking, target))


def _cycles(shape: Shape, blocking: Blocking, target: Target) -> float:
    tasks = shape.images // blocking.images * (shape.rows // blocking.rows) * blocking.parts
    tiles = blocking.images * blocking.rows * shape.cols
    outputs, area = shape.outputs // blocking.parts, shape.span**2
    tile = choose_tile(_product_plane(shape, blocking), shape.width, [0], target)
    rows, vectors = tile.sizes[0], tile.sizes[1] // tile.width
    step = cycles_a_product(rows, vectors, target)
    products = tiles * shape.inputs * outputs / shape.width * step
    inputs, results = (tiles * channels / shape.width * _TRANSFORM_CYCLES for channels in (shape.inputs, outputs))
    transformed = 0 if shape.prepared else _TRANSFORM_CYCLES / shape.width
    weights = shape.inputs * outputs * (4 / _SHARED_BYTES_A_CYCLE + transformed)
    turns = ceil(tasks / target.cores)
    return area * (turns * (products + results + weights) + inputs * (1 / target.cores if blocking.shared else turns))


def _product_plane(shape: Shape, blocking: Blocking) -> list[int]:
    """Rows and columns of a task's products."""
    return [blocking.images * blocking.rows * shape.cols, shape.outputs // blocking.parts]


def _take_epilogue(sch: Schedule, stages: list[str]) -> None:
    """Fold the one element-wise block that follows, if it is all that does, into the last stage."""
    output = find_block(sch, _OUTPUT)
    after = [block for block in list_blocks(sch) if block.name not in stages]
    if len(after) == 1 and not writes_output(sch, output) and _reads_each_point(after[0], output):
        sch.reverse_compute_inline(after[0].rv)


def _reads_each_point(block: Block, source: Block) -> bool:
    return (
        block.is_injective
        and block.is_regular
        and len(block.spatial) == len(source.spatial)
        and all(
            same_point(load.indices, block.spatial_vars) for load in block.loads if load.source.same_as(source.buffer)
        )
    )


def _read_shape(sch: Schedule, target: Target, choices: Choices, prepared: bool) -> Shape:
    output, product_ = find_block(sch, _OUTPUT), find_block(sch, _PRODUCT)
    images, high, wide, outputs = output.spatial
    span, (inputs,) = product_.spatial[0], product_.reduce
    whole = gcd(target.lanes, inputs, outputs)
    width = choices.pick("lanes", list(dict.fromkeys([whole, gcd(whole, target.lanes // 2)])), whole)
    return Shape(images, high // (span - 2), wide // (span - 2), inputs, outputs, span, width, prepared)


def _arrange_output(sch: Schedule, shape: Shape, blocking: Blocking, tile: Tile) -> tuple[LoopRV, LoopRV]:
    """Cut the output into tasks, and these into panels of channels; inside, a vector of one tile at a time.

    Returns the loops of tasks and of panels.
    """
    image, row, col, channel = sch.get_loops(find_block(sch, _OUTPUT).rv)
    image, images = sch.split(image, [None, blocking.images])
    row, rows, i = sch.split(row, [None, blocking.rows, shape.edge])
    cols, j = sch.split(col, [None, shape.edge])
    part, panels, vectors, lane = sch.split(channel, [blocking.parts, None, tile.sizes[1] // shape.width, shape.width])
    sch.reorder(image, row, part, panels, images, rows, cols, vectors, i, j, lane)
    tasks = sch.fuse(image, row, part)
    sch.parallel(tasks)
    _unroll(sch, [i, j, lane])
    sch.compute_at(find_block(sch, _UP).rv, vectors, preserve_unit_loops=True)
    _unroll(sch, sch.get_loops(find_block(sch, _UP).rv)[-3:])
    return tasks, panels


def _arrange_product(sch: Schedule, panels: LoopRV, tile: Tile, shape: Shape, turns: int) -> None:
    """One matrix product for each position of a tile, its accumulators in registers."""
    block = find_block(sch, _PRODUCT).rv
    sch.compute_at(block, panels, preserve_unit_loops=True)
    i, j, row, channel, reduce = sch.get_loops(block)[-5:]
    position = sch.fuse(i, j)
    rows, row = sch.split(row, [None, tile.sizes[0]])
    channels, vector, lane = sch.split(channel, [None, tile.sizes[1] // shape.width, shape.width])
    reduce, few = sch.split(reduce, [None, turns])
    sch.reorder(position, channels, rows, reduce, few, row, vector, lane)
    _unroll(sch, [few, row, vector, lane])
    written = sch.cache_write(block, 0, "local")
    sch.reverse_compute_at(written, rows, preserve_unit_loops=True)
    sch.storage_align(written, 0, 1, _LINES, _LINE)
    *_, row, channel = sch.get_loops(written)
    _unroll(sch, [row, *sch.split(channel, [None, shape.width])])
    _unroll(sch, sch.get_loops(sch.decompose_reduction(block, reduce))[-3:])


def _arrange_input(sch: Schedule, tasks: LoopRV | None, shape: Shape) -> None:
    """A vector of channels of one tile at a time, from the image to the transformed block: a task's, or all at once.

    A line of tiles first copies its band of the image, padded: in the order of memory, and to where it is near.
    """
    block = find_block(sch, _INPUT).rv
    if tasks is not None:
        sch.compute_at(block, tasks, preserve_unit_loops=True)
    i, j, tile, channel = sch.get_loops(block)[-4:]
    line, tile = sch.split(tile, [None, shape.cols])
    vectors, lane = sch.split(channel, [None, shape.width])
    sch.reorder(line, tile, vectors, i, j, lane)
    if tasks is None:
        sch.parallel(line)
    _unroll(sch, [i, j, lane])
    for name in (_DOWN, _GATHER):
        stage = find_block(sch, name).rv
        sch.compute_at(stage, vectors, preserve_unit_loops=True)
        _unroll(sch, sch.get_loops(stage)[-3:])
    band = find_block(sch, _BAND).rv
    sch.compute_at(band, line, preserve_unit_loops=True)
    sch.vectorize(sch.split(sch.get_loops(band)[-1], [None, shape.width])[1])


def _arrange_weights(sch: Schedule, panels: LoopRV, shape: Shape) -> None:
    """The panel's weights, a vector of output channels at a time."""
    block = find_block(sch, _WEIGHT).rv
    sch.compute_at(block, panels, preserve_unit_loops=True)
    position, blocks, channel, lanes = sch.get_loops(block)[-4:]
    vectors, lane = sch.split(lanes, [None, shape.width])
    sch.reorder(blocks, channel, vectors, position, lane)
    _unroll(sch, [position, lane])
    down = find_block(sch, _WEIGHT_DOWN).rv
    sch.compute_at(down, vectors, preserve_unit_loops=True)
    _unroll(sch, sch.get_loops(down)[-3:])
    sch.set_scope(down, 0, "local")


def _unroll(sch: Schedule, loops: list[LoopRV]) -> None:
    """The last loop becomes a vector."""
    for loop in loops[:-1]:
        sch.unroll(loop)
    sch.vectorize(loops[-1])
