"""Everything that is a matrix product at heart: convolutions, linear layers, channel mixes, their weight gradients.

C[m, n] += A[m, k] * B[n, k], where m, n and k each stand for several axes of the block. A thread block makes a tile of
C: the pieces of A and B that it needs next are fetched into shared memory by all its threads together, then each
thread multiplies its own few rows and columns from there. Gathering (padding, stride, kernel taps) happens in the
fetch, the epilogue at the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV, ScheduleError
from tvm_ffi import structural_walk

from gfcompile.codegen.schedules.blocks import Block, access, ancestors, find_block, list_blocks
from gfcompile.codegen.schedules.choices import Choices
from gfcompile.codegen.schedules.gpu.fusion import inline_epilogue, inline_producers
from gfcompile.codegen.schedules.gpu.rest import schedule_rest
from gfcompile.codegen.schedules.inline import inline_injective
from gfcompile.targets import Target
from gfcompile.targets.gpu import Gpu

_SPATIAL = 0
_SMALL = 16 * 1024  # multiply-adds
_SHORT = 8
_MOST_BLOCKS_Y = 65535
_THREADS = (32, 1024)  # a block, at least and at most
_MOST_ACCUMULATORS = 64  # a thread: more are never kept in registers
_DEPTHS = (8, 16, 32)


@dataclass(frozen=True)
class Tile:
    """`rows` x `columns` of C per thread block, `high` x `wide` of them per thread, `depth` of the sum at a time."""

    rows: int
    columns: int
    high: int
    wide: int
    depth: int = 8

    @property
    def threads(self) -> tuple[int, int]:
        """Threads of a block, (x, y)."""
        return self.columns // self.wide, self.rows // self.high

    @property
    def shared_bytes(self) -> int:
        """Of its pieces of A and B, with an odd pitch where one is read down its columns."""
        return 4 * ((self.rows + self.columns) * self.depth + max(self.rows + self.columns, 2 * self.depth))

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """What decides it, in the order in which it is chosen."""
        return self.rows, self.columns, self.high, self.wide


# from most reuse to most blocks; 64 x 64 takes 16 accumulators per thread and 4 KiB of shared memory
TILES = (
    Tile(64, 64, 4, 4),
    Tile(64, 32, 4, 4),
    Tile(32, 64, 4, 4),
    Tile(32, 32, 2, 4),
    Tile(16, 64, 2, 4),
    Tile(16, 32, 1, 4),
    Tile(8, 64, 1, 4, 16),
    Tile(4, 64, 1, 2, 16),
)
# what the rule above never takes, for those who can measure
_OTHERS = (
    Tile(128, 128, 8, 8),
    Tile(128, 64, 8, 4),
    Tile(64, 128, 4, 8),
    Tile(128, 32, 4, 4),
    Tile(32, 128, 4, 4),
    Tile(64, 64, 8, 8),
    Tile(64, 64, 8, 4),
    Tile(64, 64, 4, 8),
    Tile(64, 32, 4, 2),
    Tile(64, 16, 4, 2),
    Tile(32, 64, 2, 4),
    Tile(32, 32, 4, 4),
    Tile(32, 32, 2, 2),
    Tile(32, 16, 2, 2),
    Tile(16, 64, 1, 4),
    Tile(16, 32, 2, 2),
    Tile(16, 16, 2, 2),
    Tile(16, 16, 1, 2),
    Tile(8, 128, 1, 4),
    Tile(8, 64, 1, 2),
    Tile(8, 32, 1, 2),
    Tile(4, 128, 1, 4),
    Tile(4, 64, 1, 4),
)


@dataclass(frozen=True)
class Product:
    """The axes of a block by what they do, as positions among its axes."""

    rows: list[int]
    columns: list[int]
    depth: list[int]


def apply(sch: Schedule, target: Target, choices: Choices) -> bool:
    """The largest product of the function, with its epilogue; whatever else there is gets kernels of its own."""
    found = [block for block in list_blocks(sch) if _is_worth_tiling(block)]
    if not found:
        return False
    anchor = max(found, key=lambda block: block.work)
    inline_injective(sch, keep=ancestors(sch, anchor))
    schedule_product(sch, find_block(sch, anchor.name), target, choices)
    return True


def _is_worth_tiling(block: Block) -> bool:
    """A short sum, such as a weight gradient of two patches, reads too little again for shared memory to pay.

    With one row or one column nothing is read again, and the threads of the rows that pad a tile would all store
    the one there is: TVM folds an index that is always zero before it could ask whether it is within bounds.
    """
    product = read_product(block)
    if product is None or block.work < _SMALL or prod(block.reduce) < _SHORT:
        return False
    return min(_size(block, product.rows), _size(block, product.columns)) > 1


def _size(block: Block, axes: Sequence[int]) -> int:
    return prod(int(block.node.iter_vars[at].dom.extent) for at in axes)


def read_product(block: Block) -> Product | None:
    """Which axes make rows, columns and depth; None where an axis of the result runs through both operands."""
    if block.factors is None or not block.spatial:
        return None
    used = [_axes_of(load) for load in block.factors]
    rows, columns, depth = [], [], []
    for at, axis in enumerate(block.node.iter_vars):
        in_a, in_b = (any(axis.var.same_as(var) for var in variables) for variables in used)
        if int(axis.iter_type) != _SPATIAL:
            depth.append(at)
        elif in_a and in_b:
            return None
        elif in_b:
            columns.append(at)
        else:
            rows.append(at)
    return Product(rows, columns, depth) if rows and columns and depth else None


def choose_tile(rows: int, columns: int, multiprocessors: int) -> Tile:
    """The tile that pads least and fetches least, of those that keep every multiprocessor busy if there are any."""

    def blocks(tile: Tile) -> int:
        return -(-rows // tile.rows) * -(-columns // tile.columns)

    def cost(tile: Tile) -> float:
        area = tile.rows * tile.columns
        fetched = (tile.rows + tile.columns) / area  # values per multiply-add, from global memory
        reused = (tile.high + tile.wide) / (tile.high * tile.wide)  # the same from shared memory
        return blocks(tile) * area * (1 + 4 * fetched + reused)

    busy = [tile for tile in TILES if blocks(tile) >= 2 * multiprocessors]
    return min(busy or TILES[-3:], key=cost)


def pick_tile(rows: int, columns: int, gpu: Gpu, choices: Choices) -> Tile:
    """Any that the GPU takes, and that does not leave half of its threads without work for want of rows or columns."""
    proposed = choose_tile(rows, columns, gpu.multiprocessors)
    usable = [tile.shape for tile in (*TILES, *_OTHERS) if _is_filled(tile, rows, columns) and fits(tile, gpu)]
    shape = choices.pick("tile", list(dict.fromkeys([proposed.shape, *usable])), proposed.shape)
    depths = [depth for depth in _DEPTHS if fits(Tile(*shape, depth), gpu)]
    depth = choices.pick("depth", sorted({*depths, proposed.depth}), proposed.depth)
    return Tile(*shape, depth)


def _is_filled(tile: Tile, rows: int, columns: int) -> bool:
    return tile.rows < 2 * rows and tile.columns < 2 * columns


def fits(tile: Tile, gpu: Gpu) -> bool:
    """Whether the GPU's blocks have the threads, registers and shared memory for it."""
    least, most = _THREADS
    if tile.rows % tile.high or tile.columns % tile.wide or not least <= prod(tile.threads) <= most:
        return False
    return tile.high * tile.wide <= _MOST_ACCUMULATORS and tile.shared_bytes <= gpu.shared_bytes_per_block


def schedule_product(sch: Schedule, anchor: Block, target: Target, choices: Choices) -> None:
    """Tile a matrix product for the GPU: blocks, threads, operands through shared memory."""
    product = read_product(anchor)
    assert product is not None
    assert target.gpu is not None
    tile = pick_tile(_size(anchor, product.rows), _size(anchor, product.columns), target.gpu, choices)
    by_row = _runs_along(anchor, 0, product.depth)
    by_column = _runs_along(anchor, 1, product.depth)
    main = anchor.rv
    _normalise(sch, anchor, product, (by_row, by_column))
    sch.pad_einsum(main, [tile.rows, tile.columns, tile.depth])
    m, n, k = sch.get_loops(main)
    m_block, m_thread, m_own = sch.split(m, [None, tile.rows // tile.high, tile.high])
    n_block, n_thread, n_own = sch.split(n, [None, tile.columns // tile.wide, tile.wide])
    k_outer, k_inner = sch.split(k, [None, tile.depth])
    sch.reorder(m_block, n_block, m_thread, n_thread, k_outer, k_inner, m_own, n_own)
    # of a large batch there are more blocks than y can have: its axis, usually the rows', must be x
    x, y = (m_block, n_block) if int(sch.get(n_block).extent) <= _MOST_BLOCKS_Y else (n_block, m_block)
    sch.bind(x, "blockIdx.x")
    sch.bind(y, "blockIdx.y")
    sch.bind(n_thread, "threadIdx.x")
    sch.bind(m_thread, "threadIdx.y")
    for loop in (k_inner, m_own, n_own):
        sch.unroll(loop)
    store = sch.cache_write(main, 0, "local")
    sch.reverse_compute_at(store, n_thread, preserve_unit_loops=True)
    for operand in (0, 1):
        _fetch(sch, main, operand, k_outer, tile, pad=(by_row, by_column)[operand])
    for loop in sch.get_loops(store)[-2:]:
        sch.unroll(loop)
    zero = sch.decompose_reduction(main, k_outer)
    for loop in sch.get_loops(zero)[-2:]:
        sch.unroll(loop)
    inline_epilogue(sch, store, own=2)  # takes the padding off, and brings m and n back to the axes they are made of
    schedule_rest(sch, choices)


def _normalise(sch: Schedule, anchor: Block, product: Product, along: tuple[bool, bool]) -> None:
    """Make the block's axes m, n, k, and its operands [m, k] or [k, m], [n, k] or [k, n], and [m, n]."""
    main, sizes = anchor.rv, [int(axis.dom.extent) for axis in anchor.node.iter_vars]
    index_dtype = str(anchor.node.iter_vars[0].dom.extent.ty.dtype)
    stages = [sch.reindex(main, ("read", 0)), sch.reindex(main, ("read", 1)), sch.reindex(main, ("write", 0))]
    node = sch.get(main)
    position = {axis.var: at for at, axis in enumerate(node.iter_vars)}

    def fuse(values: dict[int, Any], axes: list[int]) -> Any:
        index: Any = 0
        for at in axes:
            if at in values:
                index = index * sizes[at] + values[at]
        return index

    def layout(known: list[int], order: Sequence[list[int]]) -> tirx.IndexMap:
        return tirx.IndexMap.from_func(
            lambda *values: [fuse(dict(zip(known, values, strict=True)), axes) for axes in order],
            ndim=len(known),
            index_dtype=index_dtype,
        )

    reads = [region for region in node.reads if not region.source.same_as(node.writes[0].source)]
    rows, columns, depth = product.rows, product.columns, product.depth
    orders = (
        (rows, depth) if along[0] else (depth, rows),
        (columns, depth) if along[1] else (depth, columns),
        (rows, columns),
    )
    for stage, region, order, end in zip(
        stages, (*reads, node.writes[0]), orders, ("write", "write", "read"), strict=True
    ):
        known = [_position_of(span.min, position) for span in region.region]
        sch.transform_layout(stage, (end, 0), layout(known, order))
    sch.transform_block_layout(main, layout(list(range(len(sizes))), (rows, columns, depth)))


def _position_of(index: Any, position: dict[Any, int]) -> int:
    for var, at in position.items():
        if index.same_as(var):
            return at
    raise ScheduleError(f"'{index}' is no axis of its block")


def _fetch(sch: Schedule, main: SBlockRV, operand: int, at: Any, tile: Tile, pad: bool) -> None:
    """All threads of the block bring the next piece of an operand to shared memory, neighbours side by side."""
    rv = sch.cache_read(main, operand, "shared")
    sch.compute_at(rv, at, preserve_unit_loops=True)
    flat = sch.fuse(*sch.get_loops(rv)[-2:])
    wide, high = tile.threads
    turn, y, x = sch.split(flat, [None, high, wide])
    sch.bind(y, "threadIdx.y")
    sch.bind(x, "threadIdx.x")
    sch.unroll(turn)
    if pad:  # read down the columns: an odd pitch keeps the threads on different banks
        sch.storage_align(rv, 0, axis=-2, factor=2, offset=1)
    inline_producers(sch, rv)


def _runs_along(anchor: Block, operand: int, depth: list[int]) -> bool:
    """Whether neighbours in memory are neighbours of the sum."""
    assert anchor.factors is not None
    return access(anchor.factors[operand], anchor.node.iter_vars[depth[-1]].var, 2) == "unit"


def _axes_of(load: Any) -> list[tirx.Var]:
    found: list[tirx.Var] = []
    for index in load.indices:
        structural_walk(index, [(tirx.Var, found.append)])
    return found
