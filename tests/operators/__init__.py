"""Cases by theme: every operator that a CNN's training step may need, over shapes and options."""

import torch

from tests.operators import choices, convolutions, indexing, norms_and_losses, pointwise, reductions, shapes, windows
from tests.operators.harness import Case, between, case

THEMES: dict[str, list[Case]] = {
    name: cases
    for part in (pointwise, choices, reductions, shapes, indexing, convolutions, windows, norms_and_losses)
    for name, cases in part.THEMES.items()
}

S = (3, 5, 4)
MASK = torch.arange(60).reshape(S) % 7 == 0
SIZES = "the size of the result is the value of a tensor, which the trace does not look at"
SPECIAL = "a special function without a kernel; no CNN that we know uses it"
OPEN: list[tuple[Case, str]] = [
    (case("index_mask", lambda x: x[:, torch.tensor([True, False, True, True, False])], S), SIZES),
    (case("index_mask_of_all", lambda x: x[MASK], S), SIZES),
    (case("repeat_interleave_list", lambda x: x.repeat_interleave(torch.tensor([2, 0, 1, 3, 1]), 1), S), SIZES),
    (case("masked_scatter", lambda x, y: x.masked_scatter(MASK, y), S, S), "a running count of the mask as index"),
    (case("erfinv", torch.erfinv, S, draw=between(-0.9, 0.9)), SPECIAL),
    (case("lgamma", torch.lgamma, S, draw=between(0.3, 3.0)), SPECIAL),
]
