"""Kernels of the patch calculus: mask counts, whole or packed in bits, and patch values moved between grids."""

from collections.abc import Callable
from typing import Any

from tvm import te, tirx

from gfcompile.codegen.kernels.patch import Axis, patch_count, window_sum

BYTE = 8


def _holds(value: Any, wanted: bool) -> Any:
    return value if wanted else tirx.Not(value)


def _counted(
    agree: Callable[..., Any], shape: tuple[int, int, int, int], rows: Axis, cols: Axis, dtype: str
) -> te.Tensor:
    counted = window_sum(lambda *at: agree(*at).astype("int32"), shape, rows, cols, "int32", "mask_count")
    return te.compute(counted.shape, lambda *at: counted[at].astype(dtype), name="as_count")


def mask_count(masks: list[te.Tensor], wanted: list[bool], rows: Axis, cols: Axis, dtype: str) -> te.Tensor:
    """masks [N,H,W,C] -> [N,n_h,n_w,C]: pixels of each window where every mask has its wanted value."""
    n, h, w = (int(d) for d in masks[0].shape[:3])
    c = max(int(mask.shape[3]) for mask in masks)

    def agree(*at: Any) -> Any:
        values = [mask[at if int(mask.shape[3]) == c else (*at[:3], 0)] for mask in masks]
        return tirx.all(*(_holds(value, want) for value, want in zip(values, wanted, strict=True)))

    return _counted(agree, (n, h, w, c), rows, cols, dtype)


def _bit(packed: te.Tensor, index: Any) -> Any:
    octet = packed[index // BYTE].astype("int32")
    return tirx.bitwise_and(tirx.shift_right(octet, index % BYTE), 1) == 1


def _flat(at: tuple[Any, ...], shape: tuple[int, ...]) -> Any:
    index = at[0]
    for position, size in zip(at[1:], shape[1:], strict=True):
        index = index * size + position
    return index


def packed_mask_count(
    bits: list[te.Tensor], wanted: list[bool], shape: tuple[int, int, int, int], rows: Axis, cols: Axis, dtype: str
) -> te.Tensor:
    """`mask_count` of masks [N,H,W,C] packed by `pack_mask`."""

    def agree(*at: Any) -> Any:
        index = _flat(at, shape)
        return tirx.all(*(_holds(_bit(packed, index), want) for packed, want in zip(bits, wanted, strict=True)))

    return _counted(agree, shape, rows, cols, dtype)


def pack_mask(mask: te.Tensor) -> te.Tensor:
    """Eight elements per byte, in the order of memory."""
    shape = tuple(int(d) for d in mask.shape)
    size = 1
    for extent in shape:
        size *= extent

    def element(index: Any) -> Any:
        at = []
        for extent in reversed(shape):
            at.append(index % extent)
            index = index // extent
        return mask[tuple(reversed(at))]

    def octet(byte: Any) -> Any:
        value = tirx.const(0, "int32")
        for bit in range(BYTE):
            index = byte * BYTE + bit
            held = element(index)
            if size % BYTE:
                held = tirx.if_then_else(index < size, held, tirx.const(False, "bool"))
            value = value + held.astype("int32") * (1 << bit)
        return value.astype("uint8")

    return te.compute((-(-size // BYTE),), octet, name="pack_mask")


def unpack_mask(bits: te.Tensor, shape: tuple[int, ...]) -> te.Tensor:
    """The mask that `pack_mask` packed."""
    return te.compute(shape, lambda *at: _bit(bits, _flat(at, shape)), name="unpack_mask")


def scale_by_area(q: te.Tensor, rows: Axis, cols: Axis, inverse: bool) -> te.Tensor:
    """Patch values [N,n_h,n_w,C] times the real pixels of their patch, or divided by them (zero for none)."""

    def value(b: Any, p: Any, s: Any, ch: Any) -> Any:
        area = patch_count(p, rows) * patch_count(s, cols)
        if not inverse:
            return q[b, p, s, ch] * area.astype("float32")
        if isinstance(area, tirx.IntImm):
            return q[b, p, s, ch] * tirx.const(1.0 / int(area), "float32")
        return tirx.if_then_else(area > 0, q[b, p, s, ch] / tirx.max(area, 1).astype("float32"), 0.0)

    return te.compute(q.shape, value, name="scale_by_area")


def regrid(q: te.Tensor, rows: Axis, cols: Axis, to_rows: Axis, to_cols: Axis) -> te.Tensor:
    """q [N,n_h,n_w,C] on a finer grid: each fine patch takes the value of the coarse one it lies in, or zero."""
    n, _, _, c = (int(d) for d in q.shape)

    def value(b: Any, p: Any, s: Any, ch: Any) -> Any:
        inside, index = [], []
        for patch, coarse, fine in ((p, rows, to_rows), (s, cols, to_cols)):
            start = tirx.max(patch * fine[1] + fine[2], fine[3])
            low, high = max(coarse[3], coarse[2]), min(coarse[4], coarse[0] * coarse[1] + coarse[2])
            inside += [start >= low, start < tirx.min(high, fine[4])]
            if fine[1] + fine[2] <= fine[3]:  # the first patches hold no pixel
                inside.append((patch + 1) * fine[1] + fine[2] > fine[3])
            index.append(tirx.max(tirx.min((start - coarse[2]) // coarse[1], coarse[0] - 1), 0))
        return tirx.if_then_else(tirx.all(*inside), q[b, index[0], index[1], ch], 0.0)

    return te.compute((n, to_rows[0], to_cols[0], c), value, name="regrid")
