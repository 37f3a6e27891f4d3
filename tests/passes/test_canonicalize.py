"""canonicalize: identities vanish, batch norm is spelt out, and the numbers stay."""

import pytest
import torch
from torch import nn

from gfcompile.passes.canonicalize import Canonicalize
from gfcompile.settings.schema import Request
from gfcompile.step import Role
from tests.passes.tiny import (
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

aten = torch.ops.aten


@pytest.mark.parametrize("batchnorm", ["eval", "train"])
def test_spells_batch_norm_out(batchnorm):
    step = network_step(batchnorm=batchnorm)
    assert_golden(f"canonicalize.{batchnorm}.before", step)
    assert_golden(f"canonicalize.{batchnorm}.after", Canonicalize().run(step))


@pytest.mark.parametrize("batchnorm", ["eval", "train"])
@pytest.mark.parametrize("train", [(), ("norm",), ("*",)], ids=["frozen", "affine", "everything"])
def test_numbers_stay(batchnorm, train):
    step = network_step(batchnorm=batchnorm, train=train)
    before = numbers(step)
    after = numbers(Canonicalize().run(step))
    assert before.keys() == after.keys()
    assert_same_numbers(before, after)


@pytest.mark.parametrize("batchnorm", ["eval", "train"])
@pytest.mark.parametrize("options", [{"affine": False}, {"eps": 0.1, "momentum": 0.7}], ids=str)
def test_numbers_stay_for_other_batch_norms(batchnorm, options):
    conv = nn.Conv2d(1, 2, 3, bias=False)  # a bias before batch statistics has no gradient
    model = nn.Sequential(conv, nn.BatchNorm2d(2, **options), nn.Conv2d(2, 2, 3))
    step = traced(model, (2, 1, 6, 6), Request(train=("*",), batchnorm=batchnorm))
    before = numbers(step)
    assert_same_numbers(before, numbers(Canonicalize().run(step)))


def test_running_statistics_are_updated_as_pytorch_does():
    """The batch's unbiased variance and mean, mixed in with the module's momentum."""
    step = Canonicalize().run(network_step(batchnorm="train"))
    updated = {value.name for value in step.outputs if value.role is Role.BUFFER}
    assert {"norm.running_mean", "norm.running_var"} <= updated


def test_identities_vanish():
    step = network_step()
    step.body.graph.lint()
    relu = nodes(step, aten.relu.default)[0]
    with step.body.graph.inserting_after(relu):
        copy = step.body.graph.call_function(aten.clone.default, (relu,))
    copy.meta["val"] = relu.meta["val"]
    relu.replace_all_uses_with(copy, delete_user_cb=lambda user: user is not copy)
    step.body.recompile()
    before = numbers(step)
    Canonicalize().run(step)
    assert copy.name in site_names(step)
    assert not nodes(step, aten.clone.default)
    assert_same_numbers(before, numbers(step))


def test_a_conversion_to_another_type_stays():
    class Halves(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(1, 2, 3)

        def forward(self, x):
            return self.conv(x.double().float())

    step = Canonicalize().run(traced(Halves(), (1, 1, 4, 4), Request(train=("conv",))))
    assert [node.meta["val"].dtype for node in nodes(step, aten._to_copy.default)] == [torch.float64, torch.float32]


@pytest.mark.parametrize("batchnorm", ["eval", "train"])
def test_second_run(batchnorm):
    assert_second_run_changes_nothing(Canonicalize(), network_step(Canonicalize(), batchnorm=batchnorm))


def test_no_known_spelling_is_left():
    assert "batch_norm" not in text(network_step(Canonicalize(), batchnorm="train"))
