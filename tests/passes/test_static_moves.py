"""static_moves: strides, scatters and constant indices become tables; what depends on the input stays."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gfcompile.graph.frozen import frozen_nodes
from gfcompile.ops import gf
from gfcompile.passes.static_moves import MOVES, PUTS, StaticMoves
from gfcompile.settings.schema import Request
from tests.passes.tiny import assert_same_numbers, assert_second_run_changes_nothing, numbers, site_names, traced

SHAPE = (2, 3, 6, 4)


class Moving(nn.Module):
    """A trained convolution, then `move` on its output, then a sum that weighs every element."""

    def __init__(self, move) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)
        self.move = move

    def forward(self, x: Tensor) -> Tensor:
        return self.move(self.conv(x))


def assign(y: Tensor) -> Tensor:
    y = y.clone()
    y[:, 1:3, ::2] = y[:, :2, 1::2] * 2
    return y


CASES = {
    "index": lambda y: y[:, [3, 0, 0, 2]],
    "grid": lambda y: y[:, :, torch.tensor([[0, 5], [2, 2]]), torch.tensor([1, 3])],
    "unfold": lambda y: y.unfold(2, 3, 2).unfold(3, 2, 1),
    "flip": lambda y: y.flip(1, 3),
    "roll": lambda y: y.roll((2, -1), (2, 3)),
    "assign": assign,
    "strided": lambda y: y.contiguous().as_strided((2, 5, 3), (96, 7, 2), 1),
    "diagonal": lambda y: y.diagonal(0, 2, 3),
    "im2col": lambda y: nn.functional.unfold(y, 3, padding=1),
    "across samples": lambda y: y[[1, 1, 0]],
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_numbers_stay(case):
    step = traced(Moving(CASES[case]), SHAPE, Request(layers=1, exact=True))
    before = numbers(step, torch.float64)
    StaticMoves().run(step)
    assert site_names(step)
    left = {node for node in step.body.graph.nodes if node.target in MOVES or node.target in PUTS}
    assert left <= frozen_nodes(step)  # these are folded later
    assert_same_numbers(before, numbers(step, torch.float64), torch.float64)
    assert_second_run_changes_nothing(StaticMoves(), step)


def test_a_sample_s_table_serves_all_samples():
    step = StaticMoves().run(traced(Moving(CASES["flip"]), SHAPE, Request(layers=1, exact=True)))
    tables = [step.tensors[value.name] for value in step.inputs if value.name.startswith("folded.")]
    assert {len(table) for table in tables} == {4 * 6 * 4}


def test_overlapping_windows_add_up_in_one_table():
    step = StaticMoves().run(traced(Moving(CASES["unfold"]), SHAPE, Request(layers=1, exact=True)))
    moves = [node for node in step.body.graph.nodes if node.target is gf.move.default]
    assert max(node.args[1].meta["val"].shape[1] for node in moves) > 1


@pytest.mark.slow
def test_indices_from_the_input_stay():
    """Which element is the largest is not known before the batch is."""
    step = traced(Moving(lambda y: y.flatten(1)[:, y.sum((0, 2, 3)).argsort()]), SHAPE, Request(layers=1, exact=True))
    StaticMoves().run(step)
    assert torch.ops.aten.index.Tensor in {node.target for node in step.body.graph.nodes}
