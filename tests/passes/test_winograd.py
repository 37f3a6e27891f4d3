"""winograd: 3x3 convolutions of stride 1, where it pays, and the numbers stay."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gfcompile.geometry.winograd import is_prepared
from gfcompile.passes import pipeline
from gfcompile.passes.channels_last import ChannelsLast
from gfcompile.passes.fold_frozen import FoldFrozen
from gfcompile.passes.remove_dead import RemoveDead
from gfcompile.passes.winograd import Winograd
from gfcompile.settings.schema import Request
from gfcompile.step import Step
from tests.passes.nets import with_head
from tests.passes.tiny import (
    applied,
    assert_same_numbers,
    nodes,
    numbers,
    traced,
)

gf = torch.ops.gf
SHAPE = (2, 32, 12, 12)


def laid_out(*convolutions: nn.Module, layers: int = 1) -> Step:
    net = with_head(*convolutions, shape=SHAPE)
    return applied(traced(net, SHAPE, Request(layers=layers)), *pipeline.FILTERING, ChannelsLast())


def conv(ci: int = 32, co: int = 32, k: int = 3, **options: int) -> nn.Conv2d:
    return nn.Conv2d(ci, co, k, **{"padding": 1, **options})


@pytest.mark.slow
def test_frozen_weights_are_transformed_beforehand_and_trained_ones_by_the_kernel() -> None:
    step = laid_out(conv(), conv())
    before = numbers(step)
    step = Winograd().run(step)
    frozen, trained = nodes(step, gf.winograd_conv2d_nhwc.default)
    assert (frozen.args[3], trained.args[3]) == (4, 4)
    assert [frozen.args[1]] == nodes(step, gf.winograd_weight.default)
    assert trained.args[1].op == "placeholder"
    assert_same_numbers(before, numbers(step))


def test_many_frozen_weights_are_not_made_four_times_as_many() -> None:
    assert is_prepared(4, (128, 128))
    assert not is_prepared(4, (256, 256))


def test_weights_are_transformed_at_compile_time() -> None:
    step = laid_out(conv(), conv())
    before = numbers(step)
    step = applied(step, Winograd(), FoldFrozen(), RemoveDead())
    assert not nodes(step, gf.winograd_weight.default)
    assert all(site.args[1].op == "placeholder" for site in nodes(step, gf.winograd_conv2d_nhwc.default))
    assert_same_numbers(before, numbers(step), torch.float32)  # the constant is rounded to it


@pytest.mark.slow
@pytest.mark.parametrize(
    "other",
    [
        conv(stride=2),
        conv(dilation=2, padding=2),
        conv(groups=2),
        conv(k=1, padding=0),
        conv(k=5, padding=2),
        conv(co=36),  # no whole vectors
    ],
    ids=["stride", "dilation", "groups", "1x1", "5x5", "channels"],
)
def test_leaves_other_convolutions(other: nn.Conv2d) -> None:
    step = laid_out(other, conv(ci=other.out_channels))
    site = nodes(step, gf.conv2d_nhwc.default)[0]
    assert site in Winograd().run(step).body.graph.nodes


@pytest.mark.slow
def test_leaves_a_step_that_updates_statistics() -> None:
    net = with_head(conv(), nn.BatchNorm2d(32), conv(), shape=SHAPE)
    step = traced(net, SHAPE, Request(layers=1, batchnorm="train"))
    step = Winograd().run(applied(step, *pipeline.FILTERING, ChannelsLast()))
    assert len(nodes(step, gf.conv2d_nhwc.default)) == 2


def test_can_be_left_out() -> None:
    for passes in (pipeline.prediction_passes(winograd=None), pipeline.gradient_passes(winograd=None)):
        assert not any(isinstance(each, Winograd) for each in passes)
