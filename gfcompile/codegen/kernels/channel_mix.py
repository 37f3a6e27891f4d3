"""The channel mix: a convolution's backward on the patch grid, where a kernel's taps fall in one patch or a few."""

from typing import Any

from tvm import te

from gfcompile.codegen.kernels.stage import Pair, pad
from gfcompile.geometry.layouts import block_size


def channel_mix(g: te.Tensor, w: te.Tensor, groups: int, taps: Pair, depthwise: bool = False) -> te.Tensor:
    """g [N,P,Q,Co], w [Co/kb,kh,kw,Ci/groups,kb] (or [kh,kw,1,C]) -> q [N,P,Q,Ci].

    q[n,P,Q,ci] = sum over co of the group and taps (u,v) of
        w[co,ci,u,v] * g[n, P + mid_h - u*dr_h, Q + mid_w - v*dr_w, co],  mid = floor(dr*(k-1)/2), (dr_h, dr_w) = taps.
    Where dr is 0 the taps of that axis all fall in the patch itself, so they are summed first (stage `tap_sum`), in the
    order in which they lie in memory, and turned to input channels after that (stage `turned`).
    """
    if depthwise:
        return _depthwise_mix(g, w, taps)
    n, p, q, co = (int(d) for d in g.shape)
    blocks, kh, kw, ci_group, kb = (int(d) for d in w.shape)
    ci, co_group, (dh, dw) = ci_group * groups, co // groups, taps
    kc = block_size(ci, groups)
    sh, sw = te.reduce_axis((0, 1 if dh else kh), "sh"), te.reduce_axis((0, 1 if dw else kw), "sw")

    taps_left = (kh if dh else 1, kw if dw else 1)
    summed = te.compute(
        (blocks, *taps_left, ci_group, kb),
        lambda block, u, v, c, lane: te.sum(w[block, u + sh, v + sw, c, lane], axis=[sh, sw]),
        name="tap_sum",
    )

    def turned(block: Any, u: Any, v: Any, o: Any, lane: Any) -> Any:
        c = block * kc + lane
        channel = o if groups == 1 else c // ci_group * co_group + o
        return summed[channel // kb, u, v, c % ci_group if groups > 1 else c, channel % kb]

    weights = te.compute((ci // kc, *taps_left, co_group, kc), turned, name="turned")
    padded, at = _shifted(g, (kh, kw), taps)
    ru, rv = te.reduce_axis((0, taps_left[0]), "ru"), te.reduce_axis((0, taps_left[1]), "rv")
    rc = te.reduce_axis((0, co_group), "rc")

    def mix(b: Any, i: Any, j: Any, c: Any) -> Any:
        channel = rc if groups == 1 else c // ci_group * co_group + rc
        row, col = at(i, j, ru, rv)
        return te.sum(padded[b, row, col, channel] * weights[c // kc, ru, rv, rc, c % kc], axis=[ru, rv, rc])

    return te.compute((n, p, q, ci), mix, name="channel_mix")


def _depthwise_mix(g: te.Tensor, w: te.Tensor, taps: Pair) -> te.Tensor:
    kh, kw, _, c = (int(d) for d in w.shape)
    dh, dw = taps
    sh, sw = te.reduce_axis((0, 1 if dh else kh), "sh"), te.reduce_axis((0, 1 if dw else kw), "sw")
    shape = (kh if dh else 1, kw if dw else 1, c)
    summed = te.compute(shape, lambda u, v, ch: te.sum(w[u + sh, v + sw, 0, ch], axis=[sh, sw]), name="tap_sum")
    padded, at = _shifted(g, (kh, kw), taps)
    ru, rv = te.reduce_axis((0, shape[0]), "ru"), te.reduce_axis((0, shape[1]), "rv")

    def mix(b: Any, i: Any, j: Any, ch: Any) -> Any:
        row, col = at(i, j, ru, rv)
        return te.sum(padded[b, row, col, ch] * summed[ru, rv, ch], axis=[ru, rv])

    return te.compute(g.shape, mix, name="depthwise_mix")


def _shifted(g: te.Tensor, kernel: Pair, taps: Pair) -> Any:
    """g zero-extended by the farthest tap, and the index of patch (i, j) seen through tap (u, v)."""
    _, p, q, _ = (int(d) for d in g.shape)
    reach = [d * (k - 1) for d, k in zip(taps, kernel, strict=True)]
    before = [r - r // 2 for r in reach]  # tap k-1 reads mid - reach = -(reach - mid)
    padded = pad(g, (before[0], before[1]), (p + reach[0], q + reach[1]))
    return padded, lambda i, j, u, v: (i + reach[0] - u * taps[0], j + reach[1] - v * taps[1])


def channel_mix_weight(
    g: te.Tensor, x_tilde: te.Tensor, groups: int, kernel: Pair, kb: int, depthwise: bool = False
) -> te.Tensor:
    """g [N,P,Q,Co], x_tilde [N,P,Q,Ci] -> gw packed [Co/kb,kh,kw,Ci/groups,kb] (or [kh,kw,1,C]), one value per tap.

    gw[co,ci,u,v] = sum over n, P, Q of g[n,P,Q,co] * x_tilde[n,P,Q,ci].
    """
    n, p, q, co = (int(d) for d in g.shape)
    rn, rp, rq = te.reduce_axis((0, n), "rn"), te.reduce_axis((0, p), "rp"), te.reduce_axis((0, q), "rq")
    if depthwise:
        total = te.compute(
            (co,),
            lambda c: te.sum(g[rn, rp, rq, c] * x_tilde[rn, rp, rq, c], axis=[rn, rp, rq]),
            name="depthwise_weight",
        )
        return te.compute((*kernel, 1, co), lambda u, v, _, c: total[c], name="every_tap")
    ci_group, co_group = int(x_tilde.shape[3]) // groups, co // groups

    def product(block: Any, c: Any, lane: Any) -> Any:
        o = block * kb + lane
        channel = c if groups == 1 else o // co_group * ci_group + c
        return te.sum(x_tilde[rn, rp, rq, channel] * g[rn, rp, rq, o], axis=[rn, rp, rq])

    total = te.compute((co // kb, ci_group, kb), product, name="weight_grad")
    shape = (co // kb, *kernel, ci_group, kb)
    return te.compute(shape, lambda block, u, v, c, lane: total[block, c, lane], name="every_tap")
