"""Forward convolution, NHWC, weights packed in blocks of output channels."""

from typing import Any

from tvm import te

from gfcompile.codegen.kernels.stage import Pair, out_extent, pad


def conv2d(x: te.Tensor, w: te.Tensor, stride: Pair, padding: Pair, dilation: Pair, groups: int) -> te.Tensor:
    """x [N,H,W,Ci], w [Co/kb,kh,kw,Ci/groups,kb] -> [N,OH,OW,Co]."""
    _, h, width, _ = (int(d) for d in x.shape)
    _, kh, kw, _, _ = (int(d) for d in w.shape)
    oh = out_extent(h, kh, stride[0], padding[0], dilation[0])
    ow = out_extent(width, kw, stride[1], padding[1], dilation[1])
    rows = (oh - 1) * stride[0] + (kh - 1) * dilation[0] + 1  # rows that some tap reads
    cols = (ow - 1) * stride[1] + (kw - 1) * dilation[1] + 1
    reads_inside = padding == (0, 0)
    padded = x if reads_inside else pad(x, padding, (rows, cols))
    return correlate(padded, w, (oh, ow), stride, dilation, groups)


def correlate(
    x: te.Tensor, w: te.Tensor, out_hw: Pair, stride: Pair, dilation: Pair, groups: int, name: str = "conv2d"
) -> te.Tensor:
    """x [N,>=rows,>=cols,Ci] already padded, w [Co/kb,kh,kw,Ci/groups,kb] -> [N,*out_hw,Co]."""
    blocks, kh, kw, ci_group, kb = (int(d) for d in w.shape)
    co = blocks * kb
    ry, rx = te.reduce_axis((0, kh), "ry"), te.reduce_axis((0, kw), "rx")
    rc = te.reduce_axis((0, ci_group), "rc")

    def taps(b: Any, i: Any, j: Any, o: Any) -> Any:
        channel = rc if groups == 1 else o // (co // groups) * ci_group + rc
        pixel = x[b, i * stride[0] + ry * dilation[0], j * stride[1] + rx * dilation[1], channel]
        return te.sum(pixel * w[o // kb, ry, rx, rc, o % kb], axis=[ry, rx, rc])

    return te.compute((int(x.shape[0]), *out_hw, co), taps, name=name)
