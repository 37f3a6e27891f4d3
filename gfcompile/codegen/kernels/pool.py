"""Pooling forward and backward, NHWC, vectors over C. Backward passes gather, so no two threads add to one pixel."""

from typing import Any

from tvm import te, tirx

from gfcompile.codegen.kernels.stage import Pair

_NO_TAP = 2**31 - 1


def max_pool2d(x: te.Tensor, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair, out_hw: Pair) -> te.Tensor:
    """x [N,H,W,C] -> [N,OH,OW,C]."""
    n, _, _, c = (int(d) for d in x.shape)
    window = _Window(x, kernel, stride, padding, dilation, out_hw)
    ry, rx = te.reduce_axis((0, kernel[0]), "ry"), te.reduce_axis((0, kernel[1]), "rx")

    def largest(b: Any, i: Any, j: Any, ch: Any) -> Any:
        row, col, inside = window.at(i, j, ry, rx)
        load = x[b, row, col, ch]
        if inside is not None:
            load = tirx.if_then_else(inside, load, tirx.min_value(x.dtype))
        return te.max(load, axis=[ry, rx])

    return te.compute((n, *out_hw, c), largest, name="max_pool")


def max_pool2d_with_indices(
    x: te.Tensor, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair, out_hw: Pair, dtype: str
) -> tuple[te.Tensor, te.Tensor]:
    """x [N,H,W,C] -> values [N,OH,OW,C] and which tap of its window won, row * kernel_w + col, as `dtype`.

    The first maximum in row order wins, as in PyTorch: a second reduction takes the least tap that holds it.
    """
    values = max_pool2d(x, kernel, stride, padding, dilation, out_hw)
    window = _Window(x, kernel, stride, padding, dilation, out_hw)
    ay, ax = te.reduce_axis((0, kernel[0]), "ay"), te.reduce_axis((0, kernel[1]), "ax")

    def tap(b: Any, i: Any, j: Any, ch: Any) -> Any:
        row, col, inside = window.at(i, j, ay, ax)
        wins = tirx.Select(x[b, row, col, ch] == values[b, i, j, ch], ay * kernel[1] + ax, _NO_TAP)
        if inside is not None:
            wins = tirx.if_then_else(inside, wins, _NO_TAP)
        return te.min(wins, axis=[ay, ax])

    winner = te.compute(values.shape, tap, name="max_pool_winner")
    return values, te.compute(winner.shape, lambda *at: winner[at].astype(dtype), name="max_pool_tap")


class _Window:
    """Where the taps of a pooling window lie, and whether that is inside the image (None where it always is)."""

    def __init__(self, x: te.Tensor, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair, out_hw: Pair) -> None:
        self.size = int(x.shape[1]), int(x.shape[2])
        self.kernel, self.stride, self.padding, self.dilation, self.out_hw = kernel, stride, padding, dilation, out_hw

    def at(self, i: Any, j: Any, ry: Any, rx: Any) -> tuple[Any, Any, Any]:
        places, inside = [], []
        for axis, (out, tap) in enumerate(((i, ry), (j, rx))):
            stride, padding, dilation = self.stride[axis], self.padding[axis], self.dilation[axis]
            place = out * stride - padding + tap * dilation
            last = (self.out_hw[axis] - 1) * stride - padding + (self.kernel[axis] - 1) * dilation
            inside += [place >= 0] * (padding > 0) + [place < self.size[axis]] * (last >= self.size[axis])
            places.append(place)
        return places[0], places[1], tirx.all(*inside) if inside else None


def max_pool2d_backward(
    gy: te.Tensor,
    taps: te.Tensor,
    input_hw: Pair,
    kernel: Pair,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
) -> te.Tensor:
    """gy, taps [N,OH,OW,C] -> gx [N,H,W,C]: each pixel asks the windows over it whether it won."""
    n, oh, ow, c = (int(d) for d in gy.shape)
    span = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    ry = te.reduce_axis((0, -(-span[0] // stride[0])), "ry")
    rx = te.reduce_axis((0, -(-span[1] // stride[1])), "rx")

    def value(b: Any, h: Any, w: Any, ch: Any) -> Any:
        # windows that start at or before the pixel, nearest first
        row, col = (h + padding[0]) // stride[0] - ry, (w + padding[1]) // stride[1] - rx
        reach = h + padding[0] - row * stride[0], w + padding[1] - col * stride[1]
        hits = [row >= 0, row < oh, col >= 0, col < ow]
        for distance, k, d in zip(reach, kernel, dilation, strict=True):
            hits += [distance < k * d, *([tirx.floormod(distance, d) == 0] if d > 1 else [])]
        here = reach[0] // dilation[0] * kernel[1] + reach[1] // dilation[1]
        won = taps[b, row, col, ch].astype("int32") == here
        wanted = tirx.Select(won, gy[b, row, col, ch], tirx.const(0, gy.dtype))
        return te.sum(tirx.if_then_else(tirx.all(*hits), wanted, tirx.const(0, gy.dtype)), axis=[ry, rx])

    return te.compute((n, *input_hw, c), value, name="max_pool_backward")


def avg_pool2d(
    x: te.Tensor,
    kernel: Pair,
    stride: Pair,
    padding: Pair,
    out_hw: Pair,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> te.Tensor:
    """x [N,H,W,C] -> [N,OH,OW,C]."""
    n, h, w, c = (int(d) for d in x.shape)
    ry, rx = te.reduce_axis((0, kernel[0]), "ry"), te.reduce_axis((0, kernel[1]), "rx")

    def value(b: Any, i: Any, j: Any, ch: Any) -> Any:
        row, col = i * stride[0] - padding[0] + ry, j * stride[1] - padding[1] + rx
        inside = tirx.all(row >= 0, row < h, col >= 0, col < w)
        return te.sum(tirx.if_then_else(inside, x[b, row, col, ch], 0.0), axis=[ry, rx])

    total = te.compute((n, *out_hw, c), value, name="avg_pool_sum")

    def mean(b: Any, i: Any, j: Any, ch: Any) -> Any:
        if divisor_override is not None:
            return total[b, i, j, ch] / tirx.const(float(divisor_override), "float32")
        rows = _divisor(i, kernel[0], stride[0], padding[0], h, count_include_pad)
        cols = _divisor(j, kernel[1], stride[1], padding[1], w, count_include_pad)
        return total[b, i, j, ch] / (rows * cols).astype("float32")

    return te.compute(total.shape, mean, name="avg_pool")


def avg_pool2d_backward(
    gy: te.Tensor,
    input_hw: Pair,
    kernel: Pair,
    stride: Pair,
    padding: Pair,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> te.Tensor:
    """gy [N,OH,OW,C] -> gx [N,H,W,C]."""
    n, oh, ow, c = (int(d) for d in gy.shape)
    ry = te.reduce_axis((0, -(-kernel[0] // stride[0])), "ry")
    rx = te.reduce_axis((0, -(-kernel[1] // stride[1])), "rx")

    def value(b: Any, h: Any, w: Any, ch: Any) -> Any:
        row, col = (h + padding[0]) // stride[0] - ry, (w + padding[1]) // stride[1] - rx
        covers = (h + padding[0] - row * stride[0] < kernel[0], w + padding[1] - col * stride[1] < kernel[1])
        inside = tirx.all(row >= 0, row < oh, col >= 0, col < ow, *covers)
        if divisor_override is not None:
            share = tirx.const(1.0 / divisor_override, "float32")
        else:
            rows = _divisor(row, kernel[0], stride[0], padding[0], input_hw[0], count_include_pad)
            cols = _divisor(col, kernel[1], stride[1], padding[1], input_hw[1], count_include_pad)
            share = tirx.const(1.0, "float32") / tirx.max(rows * cols, 1).astype("float32")
        return te.sum(tirx.if_then_else(inside, gy[b, row, col, ch] * share, 0.0), axis=[ry, rx])

    return te.compute((n, *input_hw, c), value, name="avg_pool_backward")


def _divisor(i: Any, kernel: int, stride: int, padding: int, size: int, include_pad: bool) -> Any:
    """Rows that window `i` counts: with its padding (but never past it), or the real ones only."""
    start = i * stride - padding
    if include_pad:
        return tirx.min(start + kernel, size + padding) - start
    return tirx.min(start + kernel, size) - tirx.max(start, 0)


def adaptive_avg_pool2d(x: te.Tensor, out_hw: Pair) -> te.Tensor:
    """x [N,H,W,C] -> [N,*out_hw,C]: window i covers rows floor(i*H/OH) to ceil((i+1)*H/OH)."""
    n, h, w, c = (int(d) for d in x.shape)
    ry = te.reduce_axis((0, _widest(h, out_hw[0])), "ry")
    rx = te.reduce_axis((0, _widest(w, out_hw[1])), "rx")

    def value(b: Any, i: Any, j: Any, ch: Any) -> Any:
        (top, bottom), (left, right) = _cell(i, h, out_hw[0]), _cell(j, w, out_hw[1])
        load = x[b, top + ry, left + rx, ch]
        inside = [top + ry < bottom] * (h % out_hw[0] > 0) + [left + rx < right] * (w % out_hw[1] > 0)
        return te.sum(tirx.if_then_else(tirx.all(*inside), load, 0.0) if inside else load, axis=[ry, rx])

    total = te.compute((n, *out_hw, c), value, name="adaptive_sum")

    def mean(b: Any, i: Any, j: Any, ch: Any) -> Any:
        (top, bottom), (left, right) = _cell(i, h, out_hw[0]), _cell(j, w, out_hw[1])
        return total[b, i, j, ch] / ((bottom - top) * (right - left)).astype("float32")

    return te.compute(total.shape, mean, name="adaptive_avg_pool")


def adaptive_avg_pool2d_backward(gy: te.Tensor, input_hw: Pair) -> te.Tensor:
    """gy [N,OH,OW,C] -> gx [N,H,W,C]."""
    n, oh, ow, c = (int(d) for d in gy.shape)
    h, w = input_hw

    def share(row: Any, col: Any) -> Any:
        (top, bottom), (left, right) = _cell(row, h, oh), _cell(col, w, ow)
        return tirx.const(1.0, "float32") / ((bottom - top) * (right - left)).astype("float32")

    if h % oh == 0 and w % ow == 0:  # every pixel lies in one window
        scale = tirx.const(oh * ow / (h * w), "float32")
        return te.compute(
            (n, h, w, c),
            lambda b, i, j, ch: gy[b, i // (h // oh), j // (w // ow), ch] * scale,
            name="adaptive_avg_pool_backward",
        )
    ry = te.reduce_axis((0, max(len(_over(i, h, oh)) for i in range(h))), "ry")
    rx = te.reduce_axis((0, max(len(_over(j, w, ow)) for j in range(w))), "rx")

    def value(b: Any, i: Any, j: Any, ch: Any) -> Any:
        row, col = i * oh // h + ry, j * ow // w + rx
        (top, bottom), (left, right) = _cell(row, h, oh), _cell(col, w, ow)
        inside = tirx.all(row < oh, col < ow, i >= top, i < bottom, j >= left, j < right)
        return te.sum(tirx.if_then_else(inside, gy[b, row, col, ch] * share(row, col), 0.0), axis=[ry, rx])

    return te.compute((n, h, w, c), value, name="adaptive_avg_pool_backward")


def _cell(i: Any, size: int, cells: int) -> Any:
    return i * size // cells, ((i + 1) * size + cells - 1) // cells


def _widest(size: int, cells: int) -> int:
    return max(end - start for start, end in (_cell(i, size, cells) for i in range(cells)))


def _over(i: int, size: int, cells: int) -> range:
    """Cells from floor(i*cells/size), the first whose window can hold row i, to the last that does."""
    covering = [cell for cell in range(cells) if _cell(cell, size, cells)[0] <= i < _cell(cell, size, cells)[1]]
    return range(i * cells // size, covering[-1] + 1)


def pool_positions(taps: te.Tensor, width: int, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair) -> te.Tensor:
    """taps [N,h,w,C] of max_pool2d_with_indices -> int64 positions in the pooled plane, `width` pixels wide."""

    def value(b: Any, i: Any, j: Any, ch: Any) -> Any:
        tap = taps[b, i, j, ch].astype("int32")
        row = i * stride[0] - padding[0] + tirx.floordiv(tap, kernel[1]) * dilation[0]
        col = j * stride[1] - padding[1] + tirx.floormod(tap, kernel[1]) * dilation[1]
        return (row * width + col).astype("int64")

    return te.compute(taps.shape, value, name="pool_positions")
