"""Masks, as counts and as bits."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import torch

from gfcompile.export.emitter import Emitter, Value
from gfcompile.export.gf.patches import Patches, sums
from gfcompile.export.table import Table
from gfcompile.ops import gf

TABLE = Table()
Ints = Sequence[int]
BITS = np.arange(8, dtype=np.uint8)


@TABLE.writes(gf.mask_count.default)
def _mask_count(
    to: Emitter,
    out: Value,
    masks: Sequence[Value],
    wanted: Sequence[bool],
    rows: Ints,
    cols: Ints,
    channels_last: bool = False,
) -> str:
    shape = torch.broadcast_shapes(*(mask.shape for mask in masks))
    names = [mask.name for mask in masks]
    return _count(to, out, names, wanted, Patches.of(shape, rows, cols, channels_last))


def _count(to: Emitter, out: Value, masks: Sequence[str], wanted: Sequence[bool], patches: Patches) -> str:
    agreeing = [mask if value else to.op("Not", mask) for mask, value in zip(masks, wanted, strict=True)]
    both = agreeing[0]
    for mask in agreeing[1:]:
        both = to.op("And", both, mask)
    ones = to.cast(Value(both, patches.shape, torch.bool), torch.float32)
    return to.cast(Value(sums(to, ones, patches), out.shape, torch.float32), out.dtype)


@TABLE.writes(gf.pack_mask.default)
def _pack_mask(to: Emitter, out: Value, mask: Value) -> str:
    bits = to.cast(Value(to.op("Reshape", mask, [-1]), (mask.size,), torch.bool), torch.int32)
    padded = to.op("Pad", bits, [0, -mask.size % 8])
    weighted = to.op("Mul", to.op("Reshape", padded, [-1, 8]), 2 ** BITS.astype(np.int32))
    return to.cast(Value(to.op("ReduceSum", weighted, [1], keepdims=0), out.shape, torch.int32), torch.uint8)


@TABLE.writes(gf.unpack_mask.default)
def _unpack_mask(to: Emitter, out: Value, bits: Value, shape: Ints) -> str:
    return _unpacked(to, bits, shape)


def _unpacked(to: Emitter, bits: Value, shape: Ints) -> str:
    column = to.op("Reshape", bits, [-1, 1])
    shifted = to.op("BitShift", column, BITS, direction="RIGHT")
    single = to.op("BitwiseAnd", shifted, np.ones((), dtype=np.uint8))
    flat = to.op("Slice", to.op("Reshape", single, [-1]), [0], [prod(shape)], [0])
    return to.cast(Value(to.op("Reshape", flat, shape), tuple(shape), torch.uint8), torch.bool)


@TABLE.writes(gf.packed_mask_count.default)
def _packed_mask_count(
    to: Emitter,
    out: Value,
    bits: Sequence[Value],
    wanted: Sequence[bool],
    shape: Ints,
    rows: Ints,
    cols: Ints,
    channels_last: bool = False,
) -> str:
    masks = [_unpacked(to, packed, shape) for packed in bits]
    return _count(to, out, masks, wanted, Patches.of(shape, rows, cols, channels_last))
