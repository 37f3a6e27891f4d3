"""clip_gradients: torch.nn.utils.clip_grad_norm_ and clip_grad_value_, on gradients as filtering leaves them."""

import pytest
import torch
from torch import nn

from gfcompile.passes import pipeline
from gfcompile.passes.canonicalize import Canonicalize
from gfcompile.passes.clip_gradients import ClipGradients
from gfcompile.settings.schema import Request
from gfcompile.step import Role, Step
from tests.passes.handwritten import assert_rewrites
from tests.passes.tiny import (
    applied,
    assert_close,
    network_step,
    nodes,
    numbers,
    site_names,
    text,
    traced,
)

gf = torch.ops.gf
CLIPS = [ClipGradients(norm=0.5), ClipGradients(value=0.1), ClipGradients(norm=2.0, value=0.1)]

RETURNED = """
    def step(
        x,  # input x float32[2, 3]
        y,  # target y float32[4, 2, 1, 1]
    ):
        loss = aten.sum(x)
        neg = aten.neg(x)
        expand = aten.expand(y, [4, 2, 3, 3])
        return (
            loss,  # loss loss
            neg,  # gradient head.weight
            expand,  # gradient conv.weight
        )
    """


def test_clips_by_the_common_norm():
    """One value spread over nine taps stays one value, and counts nine times."""
    after = """
        def step(
            x,  # input x float32[2, 3]
            y,  # target y float32[4, 2, 1, 1]
        ):
            loss = aten.sum(x)
            neg = aten.neg(x)
            expand = aten.expand(y, [4, 2, 3, 3])
            square_sum_default = gf.square_sum(neg, 1)
            square_sum_default_1 = gf.square_sum(y, 9)
            clip_coefficient_default = gf.clip_coefficient([square_sum_default, square_sum_default_1], 0.5)
            mul_tensor = aten.mul.Tensor(neg, clip_coefficient_default)
            mul_tensor_1 = aten.mul.Tensor(y, clip_coefficient_default)
            expand_default = aten.expand(mul_tensor_1, [4, 2, 3, 3])
            return (
                loss,  # loss loss
                mul_tensor,  # gradient head.weight
                expand_default,  # gradient conv.weight
            )
        """
    assert_rewrites(CLIPS[0], RETURNED, after, ["head.weight", "conv.weight"], relative=None)


def test_clips_by_value():
    after = """
        def step(
            x,  # input x float32[2, 3]
            y,  # target y float32[4, 2, 1, 1]
        ):
            loss = aten.sum(x)
            neg = aten.neg(x)
            expand = aten.expand(y, [4, 2, 3, 3])
            clamp_default = aten.clamp(neg, -0.1, 0.1)
            clamp_default_1 = aten.clamp(y, -0.1, 0.1)
            expand_default = aten.expand(clamp_default_1, [4, 2, 3, 3])
            return (
                loss,  # loss loss
                clamp_default,  # gradient head.weight
                expand_default,  # gradient conv.weight
            )
        """
    assert_rewrites(CLIPS[1], RETURNED, after, ["head.weight", "conv.weight"], relative=None)


def gradients(step: Step) -> dict[str, torch.Tensor]:
    return {value.name: tensor for value, tensor in numbers(step).items() if value.role is Role.GRADIENT}


def torch_clipped(clip: ClipGradients, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    parameters = {name: nn.Parameter(torch.zeros_like(tensor)) for name, tensor in given.items()}
    for name, tensor in given.items():
        parameters[name].grad = tensor.clone()
    if clip.norm is not None:
        nn.utils.clip_grad_norm_(parameters.values(), clip.norm)
    if clip.value is not None:
        nn.utils.clip_grad_value_(parameters.values(), clip.value)
    return {name: parameter.grad for name, parameter in parameters.items()}


@pytest.mark.parametrize("clip", CLIPS, ids=str)
@pytest.mark.parametrize("passes", [(Canonicalize(),), pipeline.FILTERING], ids=["exact", "filtered"])
def test_equals_torch(clip, passes):
    """Filtered, a value counts once for every tap that it stands for."""
    step = network_step(*passes)
    before = gradients(step)
    expected = torch_clipped(clip, before)
    assert any(not torch.equal(before[name], expected[name]) for name in before), "nothing was clipped"
    found = gradients(clip.run(step))
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert_close(tensor, found[name], 1e-12, name)


def test_the_norm_reads_the_value_that_the_taps_share():
    step = network_step(*pipeline.FILTERING, CLIPS[0])
    read = {tuple(node.args[0].meta["val"].shape): node.args[1] for node in nodes(step, gf.square_sum.default)}
    assert read == {(3, 2, 1, 1): 9, (3,): 1, (2, 3): 1, (2,): 1}


def test_gradients_below_the_limits_stay_as_they_are():
    step = network_step(Canonicalize())
    before = gradients(step)
    after = gradients(ClipGradients(norm=1e6, value=1e6).run(step))
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_gradient_that_two_parameters_share_counts_for_both():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 2, 1)
            self.one, self.other = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x):
            x = self.conv(x).mean((2, 3))
            return self.one(x) + self.other(x)

    step = applied(traced(Twice(), (2, 1, 3, 3), Request(train=("one", "other"))), Canonicalize())
    expected = torch_clipped(CLIPS[0], gradients(step))
    found = gradients(CLIPS[0].run(step))
    for name, tensor in expected.items():
        assert_close(tensor, found[name], 1e-12, name)


def test_clips_nothing_unless_asked():
    step = network_step(Canonicalize())
    before = text(step)
    assert text(ClipGradients().run(step)) == before
    assert site_names(step) == []
