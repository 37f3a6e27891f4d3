"""Sums and their kin: over all, one or several axes, and running along one."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.operators.harness import between, case, distinct, image

S = (3, 5, 4)
POSITIVE = between(0.3, 3.0)

REDUCTIONS = [
    case("sum", torch.sum, S),
    case("sum_axis", lambda x: x.sum(1), S),
    case("sum_axes_kept", lambda x: x.sum((0, -1), keepdim=True), S),
    case("mean", torch.mean, S),
    case("mean_axis", lambda x: x.mean(-1), S),
    case("mean_axes_kept", lambda x: x.mean((0, 2), keepdim=True), S),
    case("prod", torch.prod, (2, 3), draw=POSITIVE),
    case("prod_axis", lambda x: x.prod(1), S, draw=POSITIVE),
    case("amax", lambda x: x.amax((1, 2)), S, draw=distinct),
    case("amax_kept", lambda x: x.amax(1, keepdim=True), S, draw=distinct),
    case("amin", lambda x: x.amin(-1), S, draw=distinct),
    case("amax_of_equals", lambda x: x.round().amax(1) * x.sum(1), S),
    case("max_of_all", torch.max, S, draw=distinct),
    case("min_of_all", torch.min, S, draw=distinct),
    case("max_axis", lambda x: x.max(1).values, S, draw=distinct),
    case("max_axis_kept", lambda x: x.max(-1, keepdim=True)[0], S, draw=distinct),
    case("min_axis", lambda x: x.min(0).values, S, draw=distinct),
    case("max_indices", lambda x: (x.max(1).values, x.max(1).indices), S, draw=distinct),
    case("argmax_as_index", lambda x: x.gather(1, x.argmax(1, keepdim=True)), S, draw=distinct),
    case("argmin_as_index", lambda x: x.gather(2, x.argmin(2, keepdim=True)), S, draw=distinct),
    case("argmax_output", lambda x: (x.argmax(1), x.argmax(), x * 2), S, draw=distinct),
    case("one_hot_of_argmax", lambda x: F.one_hot(x.argmax(-1), 4) * x, S, draw=distinct),
    case("aminmax", lambda x: tuple(torch.aminmax(x, dim=1)), S, draw=distinct),
    case("any", lambda x: (x > 1).any(1).float() * x.sum(1), S),
    case("all", lambda x: (x > -1).all(1).float() * x.sum(1), S),
    case("count", lambda x: (x > 0).sum(1) * x.mean(1), S),
]
STATISTICS = [
    case("std", torch.std, S),
    case("std_axis", lambda x: x.std(1), S),
    case("std_biased", lambda x: x.std((0, 2), unbiased=False, keepdim=True), S),
    case("var", torch.var, S),
    case("var_axis", lambda x: x.var(-1, keepdim=True), S),
    case("var_correction", lambda x: x.var(1, correction=2), S),
    case("var_mean", lambda x: torch.var_mean(x, 1), S),
    case("std_mean", lambda x: torch.std_mean(x, (1, 2), correction=0), S),
    case("norm", torch.norm, S),
    case("norm_axis", lambda x: x.norm(dim=1, keepdim=True), S),
    case("norm_1", lambda x: x.norm(p=1, dim=1), S),
    case("norm_3", lambda x: torch.linalg.vector_norm(x, 3, (1, 2)), S),
    case("norm_infinite", lambda x: torch.linalg.vector_norm(x, float("inf"), 1), S, draw=distinct),
    case("norm_minus_infinite", lambda x: torch.linalg.vector_norm(x, -float("inf"), 1), S, draw=distinct),
    case("norm_frobenius", lambda x: torch.linalg.matrix_norm(x), S),
    case("norm_0", lambda x: torch.linalg.vector_norm(x.relu(), 0, 1) * x.sum(1), S),
    case("dist", lambda x, y: torch.dist(x, y), S, S),
    case("logsumexp", lambda x: x.logsumexp(1), S),
    case("logsumexp_axes_kept", lambda x: x.logsumexp((1, 2), keepdim=True), S),
    case("softmax_first", lambda x: x.softmax(0), S),
    case("softmax_last", lambda x: x.softmax(-1), S),
    case("log_softmax", lambda x: x.log_softmax(1), S),
    case("cumsum", lambda x: x.cumsum(1), S),
    case("cumsum_first", lambda x: x.cumsum(0), S),
    case("cumprod", lambda x: x.cumprod(2), S, draw=POSITIVE),
    case("diff", lambda x: x.diff(dim=1), S),
    case("median", lambda x: x.median(1).values, S, draw=distinct),
    case("sort", lambda x: x.sort(1).values, S, draw=distinct),
    case("topk", lambda x: x.topk(2, 1).values, S, draw=distinct),
    case("trapezoid", lambda x: torch.trapezoid(x, dim=1), S),
]
IMAGES = [
    image("image_mean", lambda x: x.mean((2, 3))),
    image("image_mean_kept", lambda x: x.mean((2, 3), keepdim=True)),
    image("image_mean_rows", lambda x: x.mean(2)),
    image("image_mean_columns", lambda x: x.mean(3, keepdim=True)),
    image("image_mean_channels", lambda x: x.mean(1, keepdim=True)),
    image("image_sum_channels", lambda x: x.sum(1)),
    image("image_sum_batch", lambda x: x.sum(0, keepdim=True)),
    image("image_sum_negative", lambda x: x.sum((-1, -2))),
    image("image_sum_all", lambda x: x.sum()),
    image("image_amax", lambda x: x.amax((2, 3), keepdim=True)),
    image("image_amax_channels", lambda x: x.amax(1, keepdim=True)),
    image("image_max_channels", lambda x: x.max(1, keepdim=True).values),
    image("image_var", lambda x: x.var((2, 3), keepdim=True)),
    image("image_std", lambda x: x.std((2, 3))),
    image("image_softmax_channels", lambda x: x.softmax(1)),
    image("image_softmax_pixels", lambda x: x.flatten(2).softmax(-1).reshape(x.shape)),
    image("image_logsumexp", lambda x: x.logsumexp((2, 3))),
    image("image_norm_channels", lambda x: x.norm(dim=1, keepdim=True)),
    image("image_grn", lambda x: x / (x.norm(dim=(2, 3), keepdim=True).mean(1, keepdim=True) + 1e-6)),
]
THEMES = {"reductions": REDUCTIONS, "statistics": STATISTICS, "reduced_images": IMAGES}
