"""Comparisons, masks and bounds."""

from __future__ import annotations

import torch

from tests.operators.harness import case, distinct

S = (3, 5, 4)
MASK = torch.arange(20).reshape(5, 4) % 3 == 0

CHOICES = [
    case("where", lambda x, y: torch.where(x > y, x * 2, y), S, (5, 4)),
    case("where_scalar", lambda x: torch.where(x > 0, x, 0.0), S),
    case("where_scalars", lambda x: torch.where(x > 0, 1.0, -0.5) * x, S),
    case("where_constant", lambda x: torch.where(MASK, x, -x), S),
    case("greater_equal", lambda x, y: (x >= y) * x * y, S, S),
    case("less", lambda x, y: (x < y).float() * y + x, S, S),
    case("less_equal_scalar", lambda x: (x <= 0.3).float() * x, S),
    case("equal", lambda x: (x.round() == 0).float() * x, S),
    case("not_equal", lambda x: (x.round() != 1) * x, S),
    case("bitwise_and", lambda x, y: ((x > 0) & (y > 0)) * x * y, S, S),
    case("bitwise_or", lambda x, y: ((x > 0) | (y > 0)).float() * x * y, S, S),
    case("bitwise_xor", lambda x, y: ((x > 0) ^ (y > 0)).float() * x * y, S, S),
    case("bitwise_not", lambda x: (~(x > 0)).float() * x, S),
    case("logical", lambda x: torch.logical_and(x > -1, torch.logical_not(x > 1)).float() * x, S),
    case("logical_or", lambda x: torch.logical_or(x < -1, x > 1) * x, S),
    case("isnan", lambda x: torch.where(torch.isnan(x), torch.zeros(()), x), S),
    case("isfinite", lambda x: x * torch.isfinite(x) + x * torch.isinf(x), S),
    case("masked_fill", lambda x: x.masked_fill(MASK, -3.0), S),
    case("masked_fill_dynamic", lambda x: x.masked_fill(x > 0.5, 0.5), S),
    case("masked_fill_in_place", lambda x: (x * 2).masked_fill_(MASK, 0.0), S),
    case("masked_fill_infinite", lambda x: x.masked_fill(MASK, float("-inf")).softmax(-1), S),
    case("fill_infinite", lambda x: torch.where(x > x.mean(1, True), x, torch.full((), float("-inf"))).logsumexp(1), S),
    case("mask_of_infinities", lambda x: (x + torch.full((5, 4), float("-inf")).triu(2)).softmax(-1), S),
    case("like_infinite", lambda x: torch.where(x > x.mean(1, True), x, torch.full_like(x, float("inf"))).amin(1), S),
    case("masked_fill_tensor", lambda x, y: x.masked_fill(MASK, y), S, ()),
    case("clamp", lambda x: x.clamp(-0.5, 0.7), S),
    case("clamp_min", lambda x: x.clamp(min=0.1), S),
    case("clamp_max", lambda x: x.clamp_max(0.1), S),
    case("clamp_min_in_place", lambda x: (x * 2).clamp_min_(0.1), S),
    case("clamp_tensors", lambda x, y: x.clamp(-y.abs(), y.abs()), S, (5, 1)),
    case("clamp_min_tensor", lambda x, y: x.clamp(min=y), S, (4,)),
    case("clamp_max_tensor", lambda x, y: torch.clamp_max(x, y), S, S),
    case("clip", lambda x: x.clip(0, 1), S),
    case("heaviside", lambda x: torch.heaviside(x.detach(), torch.tensor(0.5)) * x, S),
    case("integer_arithmetic", lambda x: ((x * 4).long() // 3 % 2 + 1) * x, S, draw=distinct),
    case("integer_plus_fraction", lambda x: ((x > 0).sum(1) + 0.5) * x.sum(1), S),
    case("integer_times_fraction", lambda x: ((x > 0).sum(1) * 0.3 - 0.2) * x.sum(1), S),
    case("integer_divided", lambda x: (x > 0).sum(1) / 4 * x.sum(1) + x.argmax(1) / (x < 9).sum(1), S, draw=distinct),
    case("integer_power", lambda x: x.argmax(1) ** 2 * x.sum(1) + 2.0 ** x.argmax(1), S, draw=distinct),
    case("integer_compared_with_fraction", lambda x: (x.argmax(1) > 1.5) * x.sum(1), S, draw=distinct),
    case("integer_clamped", lambda x: x.argmax(1).clamp(1, 3) * x.sum(1), S, draw=distinct),
    case(
        "integer_and_float", lambda x: x.argmax(1) * x.mean(1) - torch.minimum(x.sum(1), x.argmin(1)), S, draw=distinct
    ),
    case("mean_of_mask", lambda x: (x > 0).float().mean(1) * x.sum(1), S),
    case("equal_masks", lambda x, y: ((x > 0) == (y > 0)) * x * y + ((x > 0) != (y > 1)) * x, S, S),
    case("mask_equals_number", lambda x: ((x > 0) == 1) * x, S),
    case("masks_multiplied", lambda x: (x > 0) * (x < 1) * x, S),
    case("masks_summed", lambda x: torch.stack([x > 0, x < 1]).all(0) * x + (x > 0).any() * x, S),
    case("cast_to_int_and_back", lambda x: (x * 5).int().float() * x, S, draw=distinct),
    case("cast_to_double_and_back", lambda x: (x.double() * 2).float(), S),
    case("outputs_of_other_types", lambda x: (x > 0, x.argmax(1), (x * 3).int(), x * 2), S, draw=distinct),
]
THEMES = {"choices": CHOICES}
