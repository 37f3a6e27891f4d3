"""The two gradients of a convolution, exact for every geometry; depthwise ones stand in depthwise.py."""

from typing import Any

from tvm import te, tirx

from gfcompile.codegen.kernels.conv import correlate
from gfcompile.codegen.kernels.stage import Pair, pad
from gfcompile.geometry.layouts import block_size


def conv2d_input_grad(
    gy: te.Tensor, w: te.Tensor, input_hw: Pair, stride: Pair, padding: Pair, dilation: Pair, groups: int
) -> te.Tensor:
    """gy [N,OH,OW,Co], w [Co/kb,kh,kw,Ci/groups,kb] -> gx [N,H,W,Ci].

    An ordinary convolution of gy with the turned, transposed weights; with a stride, one such convolution for
    each residue of the pixel's position, so that no tap multiplies an inserted zero row.
    """
    _, kh, kw, _, _ = (int(d) for d in w.shape)
    if stride != (1, 1) and dilation == (1, 1):
        return _strided_input_grad(gy, w, input_hw, stride, padding, groups)
    reach = ((kh - 1) * dilation[0], (kw - 1) * dilation[1])
    origin = (reach[0] - padding[0], reach[1] - padding[1])
    extent = (input_hw[0] + reach[0], input_hw[1] + reach[1])
    spread = pad(gy, origin, extent, spread=stride)
    turned = _turn(w, groups, (kh, kw), lambda u, v: (kh - 1 - u, kw - 1 - v))
    return correlate(spread, turned, input_hw, (1, 1), dilation, groups)


def _turn(w: te.Tensor, groups: int, taps: Pair, source: Any) -> te.Tensor:
    """w [Co/kb,kh,kw,Ci/g,kb] -> [Ci/kc,*taps,Co/g,kc] with tap (u,v) taken from tap source(u,v), zero if outside."""
    blocks, kh, kw, ci_group, kb = (int(d) for d in w.shape)
    co_group, ci = blocks * kb // groups, ci_group * groups
    kc = block_size(ci, groups)

    def value(block: Any, u: Any, v: Any, o: Any, lane: Any) -> Any:
        c = block * kc + lane
        channel = o if groups == 1 else c // ci_group * co_group + o
        su, sv = source(u, v)
        load = w[channel // kb, su, sv, c % ci_group if groups > 1 else c, channel % kb]
        if taps == (kh, kw):
            return load
        return tirx.if_then_else(tirx.all(su >= 0, sv >= 0, su < kh, sv < kw), load, 0.0)

    return te.compute((ci // kc, *taps, co_group, kc), value, name="turned_weight")


def _strided_input_grad(gy: Any, w: Any, input_hw: Pair, stride: Pair, padding: Pair, groups: int) -> te.Tensor:
    """Pixel h = s*a + r - p sees the taps u = r + s*t through output row a - t (t < ceil(k/s)).

    Stage `phases` [N,R_h,A,R_w,B,Ci] holds every residue r < min(s, k); a copy puts the pixels in their place and
    zeros where no tap reaches.
    """
    n, _oh, _ow, co = (int(d) for d in gy.shape)
    _, kh, kw, ci_group, _kb = (int(d) for d in w.shape)
    ci, (sh, sw), (ph, pw) = ci_group * groups, stride, padding
    th, tw = -(-kh // sh), -(-kw // sw)
    residues = min(sh, kh), min(sw, kw)
    kc, co_group = block_size(ci, groups), co // groups
    # turned[c, (r_h, t_h), (r_w, t_w), o, lane]: tap r + s * (T - 1 - t), zero where the kernel ends before it
    turned = _turn(
        w,
        groups,
        (residues[0] * th, residues[1] * tw),
        lambda u, v: (u // th + sh * (th - 1 - u % th), v // tw + sw * (tw - 1 - v % tw)),
    )
    # position h + p = s*a + r with a in [first, last]: only those a that hold a pixel
    first_h, last_h = ph // sh, (input_hw[0] - 1 + ph) // sh
    first_w, last_w = pw // sw, (input_hw[1] - 1 + pw) // sw
    rows, cols = last_h - first_h + 1, last_w - first_w + 1
    origin = (th - 1 - first_h, tw - 1 - first_w)
    padded = pad(gy, origin, (rows + th - 1, cols + tw - 1))
    ry, rx = te.reduce_axis((0, th), "ry"), te.reduce_axis((0, tw), "rx")
    rc = te.reduce_axis((0, co_group), "rc")

    def taps(b: Any, rh: Any, i: Any, rw: Any, j: Any, c: Any) -> Any:
        channel = rc if groups == 1 else c // ci_group * co_group + rc
        weight = turned[c // kc, rh * th + ry, rw * tw + rx, rc, c % kc]
        return te.sum(padded[b, i + ry, j + rx, channel] * weight, axis=[ry, rx, rc])

    phases = te.compute((n, residues[0], rows, residues[1], cols, ci), taps, name="conv2d_phases")

    def pixel(b: Any, h: Any, v: Any, c: Any) -> Any:
        rh, rw = (h + ph) % sh, (v + pw) % sw
        load = phases[b, rh, (h + ph) // sh - first_h, rw, (v + pw) // sw - first_w, c]
        if residues == stride:
            return load
        return tirx.if_then_else(tirx.all(rh < residues[0], rw < residues[1]), load, 0.0)

    return te.compute((n, *input_hw, ci), pixel, name="interleave")


def conv2d_weight_grad(
    gy: te.Tensor, x: te.Tensor, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair, groups: int, kb: int
) -> te.Tensor:
    """gy [N,OH,OW,Co], x [N,H,W,Ci] -> gw packed [Co/kb,kh,kw,Ci/groups,kb]."""
    n, oh, ow, co = (int(d) for d in gy.shape)
    ci_group, co_group = int(x.shape[3]) // groups, co // groups
    rows = (oh - 1) * stride[0] + (kernel[0] - 1) * dilation[0] + 1
    cols = (ow - 1) * stride[1] + (kernel[1] - 1) * dilation[1] + 1
    padded = x if padding == (0, 0) else pad(x, padding, (rows, cols))
    rn, ri, rj = te.reduce_axis((0, n), "rn"), te.reduce_axis((0, oh), "ri"), te.reduce_axis((0, ow), "rj")

    def value(block: Any, u: Any, v: Any, c: Any, lane: Any) -> Any:
        o = block * kb + lane
        channel = c if groups == 1 else o // co_group * ci_group + c
        pixel = padded[rn, ri * stride[0] + u * dilation[0], rj * stride[1] + v * dilation[1], channel]
        return te.sum(pixel * gy[rn, ri, rj, o], axis=[rn, ri, rj])

    return te.compute((co // kb, *kernel, ci_group, kb), value, name="weight_grad")
