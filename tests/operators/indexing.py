"""Elements by number: constant indices, indices that the model computes, and indices that are its input."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.operators.harness import case, distinct, image, layer

S = (3, 5, 4)
ROWS, COLUMNS = torch.tensor([2, 0, 2, 1]), torch.tensor([3, 1, 0, 0])
GATHERED = torch.tensor([[[0, 4, 1, 1]], [[2, 2, 3, 0]], [[4, 0, 0, 1]]])


def scatter_rows(x: Tensor, y: Tensor) -> Tensor:
    return x.scatter(1, GATHERED, y)


CONSTANT = [
    case("index_list", lambda x: x[:, [0, 3, 3, 1]], S),
    case("index_tensor", lambda x: x[ROWS], S),
    case("index_pairs", lambda x: x[ROWS, :, COLUMNS], S),
    case("index_grid", lambda x: x[:, torch.tensor([[0, 1], [4, 2]]), COLUMNS[:, None, None]], S),
    case("index_negative", lambda x: x[..., torch.tensor([-1, 0])], S),
    case("index_select", lambda x: x.index_select(1, torch.tensor([4, 0, 4])), S),
    case("take", lambda x: torch.take(x, torch.tensor([0, 59, 7, 7])), S),
    case("gather", lambda x: x.gather(1, GATHERED), S),
    case("gather_last", lambda x: x.gather(2, torch.tensor([3, 0, 0]).expand(3, 5, 3)), S),
    case("take_along_dim", lambda x: torch.take_along_dim(x, GATHERED, 1), S),
    case("tril_indices", lambda x: x[:, *torch.tril_indices(4, 4)], (3, 4, 4)),
    case(
        "relative_positions",
        lambda x: x[(torch.arange(4)[:, None] - torch.arange(4) + 3).view(-1)].view(4, 4, 2),
        (7, 2),
    ),
    case("scatter", scatter_rows, S, (3, 1, 4)),
    case("scatter_value", lambda x: x.scatter(1, GATHERED, 0.5), S),
    case("scatter_add", lambda x, y: x.scatter_add(1, GATHERED, y), S, (3, 1, 4)),
    case("scatter_reduce_sum", lambda x, y: x.scatter_reduce(1, GATHERED, y, "sum"), S, (3, 1, 4)),
    case("index_add", lambda x, y: x.index_add(0, ROWS, y), S, (4, 5, 4)),
    case("index_copy", lambda x, y: x.index_copy(1, torch.tensor([3, 0]), y), S, (3, 2, 4)),
    case("index_fill", lambda x: x.index_fill(1, torch.tensor([3, 0]), 0.5), S),
    case("index_put", lambda x, y: x.index_put((ROWS[1:], COLUMNS[1:]), y), (3, 5), (3,)),
    case("index_put_by_mask", lambda x: x.index_put((x > 0.2,), x.new_zeros(())), (3, 5)),
    case("index_put_by_mask_of_rows", lambda x: (2 * x).index_put((x[:, 0] > 0,), x.new_ones(1)), (4, 5)),
    case("index_put_accumulate", lambda x, y: x.index_put((ROWS, COLUMNS), y, accumulate=True), (3, 5), (4,)),
    case("put_rows_of_zeros", lambda y: torch.zeros(5, 4).index_put((ROWS,), y, accumulate=True), (4, 4)),
    case("embedding_of_constants", lambda w: F.embedding(torch.tensor([[1, 3], [0, 1]]), w), (4, 5)),
    image("image_index_channels", lambda x: x[:, [3, 0, 5, 1]]),
    image("image_index_select", lambda x: x.index_select(1, torch.tensor([5, 0, 5]))),
    image("image_index_pixels", lambda x: x[:, :, torch.tensor([[6], [0]]), torch.tensor([8, 2, 2])]),
    image("image_gather", lambda x: x.flatten(2).gather(2, torch.tensor([62, 0, 7]).expand(2, 6, 3))),
]
COMPUTED = [
    case("gather_argmax", lambda x: x.gather(1, x.argmax(1, keepdim=True)), S, draw=distinct),
    case("gather_several", lambda x: x.gather(1, (x * 2 + 4).long().clamp(0, 4)), S, draw=distinct),
    case("gather_topk", lambda x, y: y.gather(1, x.topk(3, 1).indices) * x[:, :3], S, S, draw=distinct),
    case("index_by_argmax", lambda x, y: y[x.argmax(1)] * x[:, :4], (3, 5), (5, 4), draw=distinct),
    case(
        "index_pairs_by_argmax",
        lambda x, y: y[torch.arange(3), x.argmax(1)] * x[:, :2],
        (3, 5),
        (3, 5, 2),
        draw=distinct,
    ),
    case("embedding_of_argmax", lambda x, w: F.embedding(x.argmax(-1), w) * x[:, 1:], (3, 5), (5, 4), draw=distinct),
    case("index_select_argsort", lambda x, y: y.index_select(0, x.argsort()) * x[:, None], (5,), (5, 4), draw=distinct),
    case("scatter_one_hot", lambda x: torch.zeros(3, 5).scatter(1, x.argmax(1, True), 1.0) * x, (3, 5), draw=distinct),
    case(
        "scatter_add_computed",
        lambda x, y: (x * 1).scatter_add(1, x.argmax(1, True), y),
        (3, 5),
        (3, 1),
        draw=distinct,
    ),
    case("one_hot", lambda x: F.one_hot(x.argmax(1), 5).float() @ x.T, (3, 5), draw=distinct),
    case("bucketed", lambda x, w: w[(x > torch.tensor([-1.0, 0, 1])[:, None]).sum(0)] * x[:, None], (6,), (4, 2)),
    case("masked_by_rank", lambda x: x * (x >= x.topk(3, 1).values[:, -1:]), (3, 5), draw=distinct),
]
INPUT = [
    case("embedding", lambda w, i: F.embedding(i, w), (4, 5), takes_indices=True),
    case("embedding_padded", lambda w, i: F.embedding(i, w, padding_idx=2), (4, 5), takes_indices=True),
    layer("embedding_layer", lambda: nn.Embedding(4, 3), takes_indices=True),
    case("index_by_input", lambda x, i: x[:, i], (3, 4, 2), takes_indices=True),
    case("index_select_by_input", lambda x, i: x.index_select(0, i), (4, 5), takes_indices=True),
    case("gather_by_input", lambda x, i: x.gather(1, i.view(3, 2)), (3, 4), takes_indices=True),
    case("one_hot_of_input", lambda x, i: F.one_hot(i, 4).float() @ x, (4, 5), takes_indices=True),
    case("compare_with_input", lambda x, i: (i[:, None] == torch.arange(4)) * x, (6, 4), takes_indices=True),
    case("scatter_add_by_input", lambda y, i: torch.zeros(4, 5).index_add(0, i, y), (6, 5), takes_indices=True),
]
THEMES = {"constant_indices": CONSTANT, "computed_indices": COMPUTED, "input_indices": INPUT}
