"""Depthwise convolution (groups == Ci == Co) and its two gradients, NHWC, vectors over C."""

from typing import Any

from tvm import te

from gfcompile.codegen.kernels.stage import Pair, out_extent, pad


def depthwise_conv2d(x: te.Tensor, w: te.Tensor, stride: Pair, padding: Pair, dilation: Pair) -> te.Tensor:
    """x [N,H,W,C], w [kh,kw,1,C] -> [N,OH,OW,C]."""
    _, h, width, _ = (int(d) for d in x.shape)
    kh, kw, _, _ = (int(d) for d in w.shape)
    oh = out_extent(h, kh, stride[0], padding[0], dilation[0])
    ow = out_extent(width, kw, stride[1], padding[1], dilation[1])
    extent = ((oh - 1) * stride[0] + (kh - 1) * dilation[0] + 1, (ow - 1) * stride[1] + (kw - 1) * dilation[1] + 1)
    padded = x if padding == (0, 0) else pad(x, padding, extent)
    return _correlate(padded, w, (oh, ow), stride, dilation, flip=False)


def depthwise_conv2d_input_grad(
    gy: te.Tensor, w: te.Tensor, input_hw: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> te.Tensor:
    """gy [N,OH,OW,C], w [kh,kw,1,C] -> gx [N,H,W,C]: gy spread by the stride, correlated with the turned kernel."""
    kh, kw, _, _ = (int(d) for d in w.shape)
    reach = ((kh - 1) * dilation[0], (kw - 1) * dilation[1])
    origin = (reach[0] - padding[0], reach[1] - padding[1])
    extent = (input_hw[0] + reach[0], input_hw[1] + reach[1])
    return _correlate(pad(gy, origin, extent, spread=stride), w, input_hw, (1, 1), dilation, flip=True)


def depthwise_conv2d_weight_grad(
    gy: te.Tensor, x: te.Tensor, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> te.Tensor:
    """gy [N,OH,OW,C], x [N,H,W,C] -> gw [kh,kw,1,C]."""
    n, oh, ow, c = (int(d) for d in gy.shape)
    rows = (oh - 1) * stride[0] + (kernel[0] - 1) * dilation[0] + 1
    cols = (ow - 1) * stride[1] + (kernel[1] - 1) * dilation[1] + 1
    padded = x if padding == (0, 0) else pad(x, padding, (rows, cols))
    rn, ri, rj = te.reduce_axis((0, n), "rn"), te.reduce_axis((0, oh), "ri"), te.reduce_axis((0, ow), "rj")

    def value(u: Any, v: Any, _: Any, ch: Any) -> Any:
        pixel = padded[rn, ri * stride[0] + u * dilation[0], rj * stride[1] + v * dilation[1], ch]
        return te.sum(gy[rn, ri, rj, ch] * pixel, axis=[rn, ri, rj])

    return te.compute((*kernel, 1, c), value, name="depthwise_weight_grad")


def _correlate(x: te.Tensor, w: te.Tensor, out_hw: Pair, stride: Pair, dilation: Pair, flip: bool) -> te.Tensor:
    kh, kw, _, c = (int(d) for d in w.shape)
    ry, rx = te.reduce_axis((0, kh), "ry"), te.reduce_axis((0, kw), "rx")

    def taps(b: Any, i: Any, j: Any, ch: Any) -> Any:
        tap = w[kh - 1 - ry, kw - 1 - rx, 0, ch] if flip else w[ry, rx, 0, ch]
        pixel = x[b, i * stride[0] + ry * dilation[0], j * stride[1] + rx * dilation[1], ch]
        return te.sum(pixel * tap, axis=[ry, rx])

    return te.compute((int(x.shape[0]), *out_hw, c), taps, name="depthwise_conv2d")
