"""channels_last: values move, none changes, and trained convolution weights are packed."""

import pytest
import torch
from torch import Tensor, nn

from gfcompile.geometry.layouts import WeightLayout
from gfcompile.optimizers import SGD
from gfcompile.passes import pipeline
from gfcompile.passes.append_optimizer import AppendOptimizer
from gfcompile.passes.channels_last import ChannelsLast
from gfcompile.passes.fold_batchnorm import FoldBatchnorm
from gfcompile.passes.fold_frozen import FoldFrozen
from gfcompile.passes.remove_dead import RemoveDead
from gfcompile.settings.schema import Request
from gfcompile.step import Role
from tests.passes.tiny import (
    applied,
    assert_golden,
    assert_same_numbers,
    assert_second_run_changes_nothing,
    network_step,
    nodes,
    numbers,
    text,
    traced,
)

aten, gf = torch.ops.aten, torch.ops.gf
BEFORE = (*pipeline.FILTERING, AppendOptimizer(SGD(0.9, 1e-4)), FoldBatchnorm(), FoldFrozen(), RemoveDead())


@pytest.mark.slow
def test_lays_images_and_weights_out():
    step = network_step(*BEFORE)
    assert_golden("channels_last.before", step)
    assert_golden("channels_last.after", ChannelsLast().run(step))
    assert step.layouts == {"conv.weight": WeightLayout.for_conv([3, 2, 3, 3], 1)}


def test_transposes_only_where_layouts_meet():
    """One channel in, a pooled vector out: a view at each end, and no transposition of an image anywhere."""
    step = network_step(*BEFORE, ChannelsLast())
    four_axes = [node for node in nodes(step, aten.permute.default) if node.meta["val"].dim() == 4]
    assert four_axes == []


def test_an_unknown_operator_gets_the_layout_it_was_traced_with():
    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(2, 3, 3)
            self.head = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.conv(x).softmax(3).square().mean((2, 3)))

    step = applied(traced(Rows(), (2, 2, 6, 5), Request(layers=1)), *BEFORE)
    before = numbers(step)
    assert_same_numbers(before, numbers(ChannelsLast().run(step)))
    assert nodes(step, aten._softmax.default)[0].args[1] == 3


def test_a_weight_that_two_geometries_share_stays_plain():
    class TwoWays(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(4, 1, 3, 3))
            self.head = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            wide = torch.conv2d(x, self.weight, padding=1)
            return self.head(torch.conv2d(wide, self.weight, padding=1, groups=4).mean((2, 3)))

    step = applied(traced(TwoWays(), (2, 1, 5, 5), Request(train=("*",))), *BEFORE)
    before = numbers(step)
    assert_same_numbers(before, numbers(ChannelsLast().run(step)))
    assert step.layouts == {}


def test_transposed_convolutions_are_packed_like_the_ordinary_ones_they_reverse():
    model = nn.Sequential(nn.Conv2d(2, 2, 3), nn.ConvTranspose2d(2, 3, 3), nn.Flatten(), nn.Linear(75, 2))
    step = applied(traced(model, (2, 2, 5, 5), Request(layers=2)), *BEFORE)
    before = numbers(step)
    assert_same_numbers(before, numbers(ChannelsLast().run(step)))
    assert set(step.layouts) == {"0.weight", "1.weight"}


def test_state_is_packed_on_both_sides():
    step = network_step(*BEFORE, ChannelsLast())
    packed = step.layouts["conv.weight"].physical_shape
    for values, found in ((step.inputs, step.placeholders()), (step.outputs, step.results())):
        state = {value: node for value, node in zip(values, found, strict=True) if value.parameter == "conv.weight"}
        assert {value.role for value in state} == {Role.PARAMETER, Role.OPTIMIZER}
        assert {tuple(node.meta["val"].shape) for node in state.values()} == {packed}


def test_second_run_of_an_exact_step():
    step = network_step(*BEFORE, ChannelsLast(), exact=True)
    before = text(step)
    assert text(ChannelsLast().run(step)) == before


def test_second_run():
    assert_second_run_changes_nothing(ChannelsLast(), network_step(*BEFORE, ChannelsLast()))
