"""filter: the marked operator becomes patch operators and gives the same numbers."""

import pytest
import torch
from torch import nn

from gfcompile.passes.canonicalize import Canonicalize
from gfcompile.passes.filter import Filter
from gfcompile.passes.select import Select
from gfcompile.settings.schema import Request
from tests.passes.tiny import (
    applied,
    assert_golden,
    assert_same_numbers,
    assert_second_run_changes_nothing,
    network_step,
    nodes,
    numbers,
    site_names,
    text,
    traced,
)

gf = torch.ops.gf
CONVOLUTIONS = {
    "same": nn.Conv2d(4, 6, 3, padding=1),
    "strided": nn.Conv2d(4, 6, 3, stride=2, padding=1),
    "rectangular": nn.Conv2d(4, 6, (5, 2), stride=(1, 3), padding=(0, 1)),
    "depthwise": nn.Conv2d(4, 4, 3, stride=2, padding=1, groups=4),
    "grouped": nn.Conv2d(4, 6, 3, padding=1, groups=2),
    "dilated": nn.Conv2d(4, 6, 3, padding=3, dilation=3),
}


def marked_step(conv: nn.Module, r: int, compat: str | None = None):
    model = nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU(), conv, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.LazyLinear(2))
    model(torch.zeros(2, 4, 7, 9))
    request = Request(layers=2, r={"*": r}, compat=compat)
    return applied(traced(model, (2, 4, 7, 9), request), Canonicalize(), Select())


def test_expands_the_marked_backward():
    step = network_step(Canonicalize(), Select())
    assert_golden("filter.before", step)
    assert_golden("filter.after", Filter().run(step))
    assert site_names(step) == ["p_model_conv_weight"]


@pytest.mark.parametrize(("name", "r"), [*((name, 2) for name in CONVOLUTIONS), ("strided", 1), ("rectangular", 4)])
def test_equals_the_marked_operator(name, r):
    step = marked_step(CONVOLUTIONS[name], r)
    before = numbers(step)
    after = numbers(Filter().run(step))
    assert len(site_names(step)) == 2
    assert_same_numbers(before, after)


@pytest.mark.parametrize("name", ["same", "strided", "depthwise", "dilated"])
def test_equals_the_marked_operator_in_reference_mode(name):
    step = marked_step(CONVOLUTIONS[name], 2, "reference")
    before = numbers(step)
    assert_same_numbers(before, numbers(Filter().run(step)))


def test_computes_only_what_is_used():
    """The first trained layer needs no gx, so neither channel mix nor broadcast is written for it."""
    step = network_step(Canonicalize(), Select(), Filter())
    assert not nodes(step, gf.channel_mix.default)
    assert not nodes(step, gf.patch_broadcast.default)
    assert len(nodes(step, gf.patch_sum.default)) == 1


def test_finds_nothing_in_an_exact_step():
    step = network_step(Canonicalize(), Select(), exact=True)
    before = text(step)
    assert text(Filter().run(step)) == before
    assert site_names(step) == []


def test_second_run():
    assert_second_run_changes_nothing(Filter(), network_step(Canonicalize(), Select(), Filter()))
