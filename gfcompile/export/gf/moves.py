"""Maps along an axis, moves by a table, random numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from gfcompile.export.emitter import Emitter, Value
from gfcompile.export.table import Table
from gfcompile.geometry.axis_maps import matrix
from gfcompile.ops import gf
from gfcompile.ops.random import MULTIPLIER, ROUNDS, WEYL, WORD

TABLE = Table()
Ints = Sequence[int]


@TABLE.writes(gf.axis_map.default)
def _axis_map(
    to: Emitter, out: Value, x: Value, axis: int, size: int, kind: str, settings: Sequence[float], transposed: bool
) -> str:
    """A product with the map's matrix; an axis that is not the last is multiplied from the left."""
    axis, length = axis % x.rank, x.shape[axis]
    small, large = (size, length) if transposed else (length, size)
    weights = matrix(kind, tuple(settings), small, large).numpy()
    forward = np.ascontiguousarray(weights.T if transposed else weights)  # [size, length]
    if axis == x.rank - 1:
        return to.op("MatMul", x, np.ascontiguousarray(forward.T))
    rest = [*x.shape[:axis], length, -1]
    return to.op("Reshape", to.op("MatMul", forward, to.op("Reshape", x, rest)), out.shape)


@TABLE.writes(gf.move.default)
def _move(to: Emitter, out: Value, sources: Sequence[Value], table: Value, shape: Ints) -> str:
    """Position 0 is a zero in front of the sources."""
    samples = out.size // table.shape[0]
    flat = [to.op("Reshape", source, [samples, -1]) for source in sources]
    laid = flat[0] if len(flat) == 1 else to.op("Concat", *flat, axis=1)
    padded = to.op("Pad", laid, [0, 1, 0, 0])
    index = to.op("Reshape", to.cast(table, torch.int64), [-1])
    found = to.op("Reshape", to.op("Gather", padded, index, axis=1), [samples, *table.shape])
    return to.op("Reshape", to.op("ReduceSum", found, [2], keepdims=0), out.shape)


@TABLE.writes(gf.put.default)
def _put(to: Emitter, out: Value, base: Value, index: Value, values: Value, accumulate: bool) -> str:
    where = to.cast(index, torch.int64)
    return to.op("ScatterElements", base, where, values, axis=1, reduction="add" if accumulate else None)


@TABLE.writes(gf.uniform.default)
def _uniform(to: Emitter, out: Value, seed: Value, stream: int, shape: Ints) -> str:
    """`ops.random`: multiplied as int64, whose low bits are those of the unsigned product, and shifted as uint64."""
    word, weyl, half = (np.array(number, dtype=np.uint64) for number in (WORD, WEYL, 32))
    low = to.op("Range", *(np.array(number, dtype=np.int64) for number in (0, out.size, 1)))
    high: str | np.ndarray = np.array(stream, dtype=np.uint64)
    key = to.op("BitwiseAnd", _unsigned(to, to.op("Reshape", seed, np.zeros(0, dtype=np.int64))), word)
    for _ in range(ROUNDS):
        product = _unsigned(to, to.op("Mul", low, np.array(MULTIPLIER, dtype=np.int64)))
        upper = to.op("BitShift", product, half, direction="RIGHT")
        mixed = to.op("BitwiseXor", to.op("BitwiseXor", upper, key), high)
        high = to.op("BitwiseAnd", product, word)
        low = to.cast(Value(mixed, (), torch.uint64), torch.int64)
        key = to.op("BitwiseAnd", to.op("Add", key, weyl), word)
    top = to.op("BitShift", _unsigned(to, low), np.array(8, dtype=np.uint64), direction="RIGHT")
    number = to.cast(Value(top, (), torch.uint64), torch.float32)
    return to.op("Reshape", to.op("Mul", number, to.scalar(2.0**-24, torch.float32)), out.shape)


def _unsigned(to: Emitter, value: str) -> str:
    return to.cast(Value(value, (), torch.int64), torch.uint64)
