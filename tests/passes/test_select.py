"""select: marks what the plan filters, equals the oracle, and names what it refuses."""

import pytest
import torch
from torch import nn

from gfcompile.passes.canonicalize import Canonicalize
from gfcompile.passes.select import BACKWARD, Select
from gfcompile.settings.schema import Request
from gfcompile.step import Refusal
from tests.oracles import filtered_conv_gradients
from tests.passes.tiny import (
    applied,
    assert_close,
    assert_golden,
    network_step,
    node_values,
    nodes,
    numbers,
    site_names,
    text,
    traced,
)

MARKED = torch.ops.gf.filtered_convolution_backward.default
REFERENCE = "the reference formulas "


def pair_step(conv: nn.Module, shape=(2, 4, 9, 8), **request) -> object:
    """A convolution to be filtered behind a trained 1x1 one, so that its gx is wanted as well."""
    channels = shape[1]
    model = nn.Sequential(nn.Conv2d(channels, channels, 1), conv, nn.Flatten(), nn.LazyLinear(2))
    model(torch.zeros(shape))
    return applied(traced(model, shape, Request(**{"layers": 2, **request})), Canonicalize())


def test_marks_the_planned_layer():
    step = network_step(Canonicalize())
    assert_golden("select.before", step)
    assert_golden("select.after", Select().run(step))
    assert len(site_names(step)) == 1
    assert step.refusals == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("conv", "r"),
    [
        (nn.Conv2d(4, 6, 3, padding=1), 2),
        (nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=False), 2),
        (nn.Conv2d(4, 4, (5, 2), stride=(1, 3), groups=4), 3),
        (nn.Conv2d(4, 8, 3, padding=2, dilation=2, groups=2), 2),
    ],
    ids=["same", "strided", "depthwise", "dilated"],
)
@pytest.mark.parametrize("compat", [None, "reference"])
def test_equals_the_oracle(conv, r, compat):
    step = Select().run(pair_step(conv, r={"1": r, "0": 1}, compat=compat))
    marked = [node for node in nodes(step, MARKED) if node.args[7] == r]
    if not marked:
        assert step.refusals, "neither marked nor refused"
        return
    values = node_values(step)
    (node,) = marked
    gy, x, w = (values[arg].numpy() for arg in node.args[:3])
    stride, padding, dilation, groups = [*node.args[3:6], node.args[6]]
    mode = compat or "unbiased"
    geometry = {"stride": tuple(stride), "padding": tuple(padding), "dilation": tuple(dilation), "groups": groups}
    oracle = filtered_conv_gradients(x, w, gy, r=r, **geometry, mode=mode)
    for expected, actual in zip(oracle, values[node], strict=True):
        assert_close(expected, actual, 1e-12)


def test_leaves_other_layers_alone():
    """The head, frozen layers and whatever the plan keeps exact."""
    step = network_step(Canonicalize(), exact=True)
    before = text(step)
    Select().run(step)
    assert text(step) == before
    assert nodes(step, BACKWARD)
    assert step.refusals == []


def test_changes_the_filtered_gradients_only():
    step = network_step(Canonicalize())
    before = numbers(step)
    after = numbers(Select().run(step))
    changed = {value.name for value in before if not torch.allclose(before[value], after[value], rtol=1e-9)}
    assert changed == {"conv.weight"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "shape", "layer", "reason"),
    [
        (
            nn.Sequential(nn.Conv2d(2, 2, 3), nn.ConvTranspose2d(2, 3, 3), nn.Flatten(), nn.Linear(75, 2)),
            (1, 2, 5, 5),
            "1",
            "it is a transposed convolution; gradient filtering is defined for ordinary ones",
        ),
        (
            nn.Sequential(nn.Conv1d(2, 3, 3), nn.Flatten(), nn.Linear(9, 2)),
            (1, 2, 5),
            "0",
            "it is a 1-D convolution; gradient filtering is defined for 2-D",
        ),
        (
            nn.Sequential(nn.Conv3d(2, 3, 3), nn.Flatten(), nn.Linear(81, 2)),
            (1, 2, 5, 5, 5),
            "0",
            "it is a 3-D convolution; gradient filtering is defined for 2-D",
        ),
    ],
    ids=["transposed", "1-D", "3-D"],
)
def test_refuses_what_is_not_an_ordinary_2d_convolution(model, shape, layer, reason):
    step = applied(traced(model, shape, Request(train=(layer,))), Canonicalize(), Select())
    assert step.refusals == [Refusal(layer, reason)]
    assert not nodes(step, MARKED)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("conv", "r", "reason"),
    [
        (nn.Conv2d(4, 6, 3, padding=1, groups=2), 2, "know groups=1 and depthwise only, not groups=2"),
        (nn.Conv2d(4, 8, 3, padding=1, groups=4), 2, "know groups=1 and depthwise only, not groups=4"),
        (
            nn.Conv2d(4, 6, 5),
            2,
            "have no window for input rows beyond the output's patches ('valid' padding)",
        ),
        (
            nn.Conv2d(4, 6, 3, padding=(1, 2), dilation=(1, 2)),
            2,
            "know one dilation for both axes, not (1, 2)",
        ),
        (
            nn.Conv2d(4, 6, 5, padding=4, dilation=2),
            2,
            "define dilated filtering for 3x3 kernels only, not (5, 5)",
        ),
    ],
    ids=["groups", "multiplier", "valid", "dilations", "dilated kernel"],
)
def test_reference_refuses(conv, r, reason):
    step = Select().run(pair_step(conv, r={"1": r}, layers=1, compat="reference"))
    assert step.refusals == [Refusal("1", REFERENCE + reason)]
    assert not nodes(step, MARKED)
    unbiased = Select().run(pair_step(conv, r={"1": r}, layers=1))
    assert unbiased.refusals == []
    assert len(nodes(unbiased, MARKED)) == 1


def test_a_shared_module_is_filtered_at_each_use():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(2, 2, 3, padding=1)
            self.head = nn.Linear(2, 2)

        def forward(self, x):
            return self.head(self.conv(self.conv(x).relu()).mean((2, 3)))

    step = applied(traced(Twice(), (1, 2, 4, 4), Request(layers=1)), Canonicalize(), Select())
    assert len(nodes(step, MARKED)) == 2
