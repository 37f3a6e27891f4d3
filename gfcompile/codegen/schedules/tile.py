"""The register tile: a reduction whose accumulators live in vector registers, its epilogue applied at the tile."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV

from gfcompile.codegen.schedules.blocks import (
    Block,
    access,
    ancestors,
    axis_loops,
    find_block,
    list_blocks,
    same_point,
    split_axes,
    writes_output,
)
from gfcompile.codegen.schedules.choices import Choices
from gfcompile.targets import Target

_WIDEST = 16  # lanes of an odd-sized vector: LLVM splits it into legal ones
_OFFERED = 24  # tiles, as a choice
_OPERANDS = 2  # vector registers that no tile can do without
_MOST_TURNS = 16


def divisors(number: int, limit: int) -> list[int]:
    """Those up to the limit, ascending."""
    return [d for d in range(1, min(number, limit) + 1) if number % d == 0]


def accumulators(target: Target) -> int:
    """Vector registers for accumulators: the others hold operands, in order for longer, as loads come well before."""
    return target.registers * 5 // 8 if target.in_order else target.registers * 3 // 4


def cycles_a_product(rows: int, vectors: int, target: Target) -> float:
    """Cycles per multiply-add of a tile of `rows` by `vectors`: every step loads one value per row and all the vectors.

    Out of order, loads run beside the multiply-adds: two of each start in a cycle, and a sum waits four for its last.
    In order (Cortex-A53: one multiply-add per cycle, a sum waits eight) a load is never started together with a
    multiply-add, and one of a whole vector takes two cycles: what counts is how few loads a multiply-add needs.
    """
    total = rows * vectors
    if target.in_order:
        return max(8 / total, (total + rows + 2 * vectors) / total)
    return max(0.5, 4 / total, (rows + vectors) / (2 * total))


def vector_width(block: Block, target: Target) -> int | None:
    """Lanes of the block's last axis that every operand reads consecutively or as one value; None if none do."""
    extent = block.spatial[-1]
    sizes = [target.lanes] * (extent % target.lanes == 0)
    for width in (*sizes, *reversed(divisors(extent, _WIDEST))):
        if _reads_vectors(block, width):
            return width if width > 1 or extent == 1 else None
    return None


def _reads_vectors(block: Block, width: int) -> bool:
    return all(access(load, block.spatial_vars[-1], width) != "gather" for load in block.loads)


def pick_width(choices: Choices, block: Block, target: Target) -> int | None:
    """`vector_width`, or half a vector, which some processors do twice as many of, and which fits more extents."""
    proposed = vector_width(block, target)
    if proposed is None or proposed == 1:
        return proposed
    others = [size for size in (target.lanes, target.lanes // 2) if size > 1 and block.spatial[-1] % size == 0]
    options = dict.fromkeys([proposed, *(size for size in others if _reads_vectors(block, size))])
    return choices.pick("lanes", list(options), proposed)


@dataclass(frozen=True)
class Tile:
    """Extents of the register tile along every spatial axis; the last axis is `vectors * width` long."""

    sizes: tuple[int, ...]
    width: int

    @property
    def accumulators(self) -> int:
        """Vector registers that its sums take."""
        return prod(self.sizes) // self.width


def choose_tile(
    extents: list[int],
    width: int,
    rows: list[int],
    target: Target,
    most_vectors: int = 8,
    most: int | None = None,
) -> Tile:
    """The tile with the least cycles per multiply-add; `rows` are the axes to tile beside the last, preferred first.

    Every size divides its axis, so no edge is left. `most` is how many accumulators it may have, if fewer than usual.
    """
    budget = accumulators(target) if most is None else max(1, most)
    return list_tiles(extents, width, rows, target, most_vectors, budget)[0]


def list_tiles(
    extents: list[int], width: int, rows: list[int], target: Target, most_vectors: int, budget: int
) -> list[Tile]:
    """All tiles of at most `budget` accumulators, best first."""
    found: list[tuple[tuple[float, ...], Tile]] = []
    spans = [divisors(extents[axis], budget) for axis in rows]
    for vectors in divisors(extents[-1] // width, min(budget, most_vectors)):
        for sizes in product(*spans):
            count = prod(sizes)
            if count * vectors > budget:
                continue
            cycles = cycles_a_product(count, vectors, target)
            # ties: two vectors per row is what one packed block holds; then long rows of the preferred axis
            cost = (round(cycles, 3), abs(vectors - 2), *(-size for size in sizes))
            tile = [1] * len(extents)
            tile[-1] = vectors * width
            for axis, size in zip(rows, sizes, strict=True):
                tile[axis] = size
            found.append((cost, Tile(tuple(tile), width)))
    return [tile for _, tile in sorted(found, key=lambda pair: pair[0])]


def pick_tile(
    choices: Choices,
    extents: list[int],
    width: int,
    rows: list[int],
    target: Target,
    proposed: Tile,
    most_vectors: int = 8,
    name: str = "tile",
) -> Tile:
    """A choice among the best of all tiles that leave room for operands."""
    tiles = list_tiles(extents, width, rows, target, most_vectors, target.registers - _OPERANDS)[:_OFFERED]
    sizes = [tile.sizes for tile in tiles]
    return Tile(choices.pick(name, list(dict.fromkeys([proposed.sizes, *sizes])), proposed.sizes), width)


def find_tail(sch: Schedule, anchor: Block) -> Block | None:
    """The one block that reads the anchor's result point by point, if it is all that follows the anchor."""
    before = ancestors(sch, anchor)
    after = [block for block in list_blocks(sch) if block.name not in before and block.name != anchor.name]
    if len(after) != 1 or writes_output(sch, anchor):
        return None
    (tail,) = after
    if not (tail.is_injective and tail.is_regular and tail.spatial == anchor.spatial):
        return None
    for load in tail.loads:
        if load.source.same_as(anchor.buffer) and not same_point(load.indices, tail.spatial_vars):
            return None
    return tail


def bring_tail(sch: Schedule, anchor: Block) -> tuple[Block, Block]:
    """(anchor, tail): the anchor writes registers, the tail is its epilogue or, where it has none, a copy."""
    tail = find_tail(sch, anchor)
    if tail is None:
        rv = sch.cache_write(anchor.rv, 0, "local")
        tail = Block(rv, sch.get(rv))
    else:
        sch.set_scope(anchor.rv, 0, "local")
        tail = find_block(sch, tail.name)
    return find_block(sch, anchor.name), tail


def open_tile(sch: Schedule, tail: Block, tile: Tile) -> tuple[list[LoopRV], list[LoopRV]]:
    """Split every loop of the tail into (outer, inner): the caller arranges the outer ones."""
    outer, inner = [], []
    for loop, size in zip(axis_loops(sch, tail), tile.sizes, strict=True):
        o, i = sch.split(loop, [None, size])
        outer.append(o)
        inner.append(i)
    sch.reorder(*outer, *inner)
    return outer, inner


def pick_turns(choices: Choices, reduce: int, proposed: int = 0) -> int:
    """How many turns of a reduction loop are unrolled; 0 leaves it to the template's rule."""
    return choices.pick("turns", sorted({proposed, *divisors(reduce, _MOST_TURNS)}), proposed)


def close_tile(
    sch: Schedule,
    anchor: Block,
    at: LoopRV,
    inner: list[LoopRV],
    tile: Tile,
    unroll_reduce: int = 1,
    turns: int = 0,
) -> None:
    """Compute the anchor inside loop `at`, accumulators in registers: reductions outside, tile unrolled, lanes last.

    Reduction loops from the innermost out are unrolled while their product stays within `unroll_reduce`; or, if that
    many are asked for, just `turns` of the innermost.
    """
    _unroll_lanes(sch, inner, tile.width)
    sch.compute_at(anchor.rv, at, preserve_unit_loops=True)
    depth, axes = len(tile.sizes), len(anchor.kinds)
    loops = sch.get_loops(anchor.rv)[-axes:]
    space, reduce = split_axes(anchor, loops)
    vector, lane = sch.split(space[-1], [None, tile.width])
    extents = anchor.reduce
    if turns:
        reduce[-1:] = sch.split(reduce[-1], [None, turns])
        extents, unroll_reduce = [*extents[:-1], extents[-1] // turns, turns], turns
    sch.reorder(*reduce, *space[:-1], vector, lane)
    for loop in (*space[:-1], vector):
        sch.unroll(loop)
    sch.vectorize(lane)
    count = 1
    for loop, extent in zip(reversed(reduce), reversed(extents), strict=True):
        count *= extent
        if count > unroll_reduce:
            break
        sch.unroll(loop)
    # last, because a block without its init is no longer a reduction to TVM, and refuses vectorize
    *zero, last = sch.get_loops(sch.decompose_reduction(anchor.rv, reduce[0]))[-(depth + 1) :]
    for loop in zero:
        sch.unroll(loop)
    sch.vectorize(last)


def _unroll_lanes(sch: Schedule, loops: list[LoopRV], width: int) -> None:
    vector, lane = sch.split(loops[-1], [None, width])
    for loop in (*loops[:-1], vector):
        sch.unroll(loop)
    sch.vectorize(lane)
