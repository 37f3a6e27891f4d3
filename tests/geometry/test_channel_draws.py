"""How many channels a ratio is, and what may be drawn together."""

from dataclasses import replace

import pytest

from gfcompile.geometry.channel_draws import Draw, drawn_channels
from gfcompile.geometry.convolution import ConvGeometry

GEOMETRY = ConvGeometry(1, 64, 32, (8, 8), (8, 8), (3, 3), (1, 1), (1, 1), (1, 1), 1)


def count(ratio, **changes):
    return drawn_channels(replace(GEOMETRY, **changes), ratio)


def test_the_nearest_number_and_one_at_least():
    assert [count(ratio) for ratio in (0.001, 0.02, 0.1, 0.25, 0.5)] == [1, 1, 6, 16, 32]
    assert count(1.0) is None
    assert count(0.999) is None


def test_every_group_gives_equally_many():
    assert count(0.25, groups=4) == 16
    assert count(0.1, groups=4) == 8  # 1.6 of 16 in a group: two


def test_fewer_than_groups_are_whole_groups():
    assert count(0.1, groups=32) == 6  # three groups of two channels
    assert count(0.01, groups=32) == 2
    assert count(0.1, groups=64) == 6  # depthwise


def test_a_group_that_is_larger_than_their_number_is_not_drawn_whole():
    assert count(0.01, groups=2) == 2  # one channel of each, not 32 of one


@pytest.mark.parametrize("groups", [1, 2, 8, 32, 64])
@pytest.mark.parametrize("ratio", [0.01, 0.1, 0.3, 0.7])
def test_the_parts_of_a_draw_make_up_its_count(groups, ratio):
    weight = [128, 64 // groups, 3, 3]
    draw = Draw.of(weight, groups, count(ratio, groups=groups, out_channels=128))
    assert draw.sets * draw.chosen * draw.width == draw.count
    assert draw.sets * draw.candidates * draw.width == 64
    outputs, inputs, *_ = draw.drawn_shape(weight)
    assert inputs * draw.drawn_groups == draw.count
    assert outputs // draw.drawn_groups == 128 // groups
