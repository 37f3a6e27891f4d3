"""canonicalize: identities vanish, batch norm is spelt out, and the numbers stay."""

import pytest
from torch import nn

from gfcompile.passes.canonicalize import Canonicalize
from gfcompile.settings.schema import Request
from gfcompile.step import Role
from tests.passes.handwritten import assert_rewrites
from tests.passes.tiny import (
    assert_golden,
    assert_same_numbers,
    network_step,
    numbers,
    text,
    traced,
)


@pytest.mark.slow
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


def test_no_known_spelling_is_left():
    assert "batch_norm" not in text(network_step(Canonicalize(), batchnorm="train"))


def test_spells_the_batchs_norm_out():
    step = network_step(batchnorm="train")
    assert_golden("canonicalize.train.before", step)
    assert_golden("canonicalize.train.after", Canonicalize().run(step))


def test_spells_batch_norm_out_and_drops_identities():
    before = """
        def step(
            weight,  # parameter norm.weight float32[3]
            bias,  # parameter norm.bias float32[3]
            mean,  # buffer norm.running_mean float32[3]
            var,  # buffer norm.running_var float32[3]
            x,  # input x float32[2, 3, 4, 4]
        ):
            clone = aten.clone(x)
            norm = aten._native_batch_norm_legit_no_training(clone, weight, bias, mean, var, 0.1, 1e-05)
            getitem = getitem(norm, 0)
            alias = aten.alias(getitem)
            relu = aten.relu(alias)
            return (
                relu,  # output output
            )
        """
    after = """
        def step(
            weight,  # parameter norm.weight float32[3]
            bias,  # parameter norm.bias float32[3]
            mean,  # buffer norm.running_mean float32[3]
            var,  # buffer norm.running_var float32[3]
            x,  # input x float32[2, 3, 4, 4]
        ):
            add_scalar = aten.add.Scalar(var, 1e-05)
            rsqrt_default = aten.rsqrt(add_scalar)
            mul_tensor = aten.mul.Tensor(weight, rsqrt_default)
            mul_tensor_1 = aten.mul.Tensor(mean, mul_tensor)
            sub_tensor = aten.sub.Tensor(bias, mul_tensor_1)
            reshape_default = aten.reshape(mul_tensor, [1, -1, 1, 1])
            mul_tensor_2 = aten.mul.Tensor(x, reshape_default)
            reshape_default_1 = aten.reshape(sub_tensor, [1, -1, 1, 1])
            add_tensor = aten.add.Tensor(mul_tensor_2, reshape_default_1)
            relu = aten.relu(add_tensor)
            return (
                relu,  # output output
            )
        """
    assert_rewrites(Canonicalize(), before, after, ["clone", "norm", "alias"], relative=1e-12)


def test_a_conversion_to_another_type_stays():
    before = """
        def step(
            x,  # input x float32[2]
        ):
            double = aten._to_copy(x, dtype=torch.float64)
            single = aten._to_copy(double, dtype=torch.float32)
            same = aten._to_copy(single, dtype=torch.float32)
            relu = aten.relu(same)
            return (
                relu,  # output output
            )
        """
    after = """
        def step(
            x,  # input x float32[2]
        ):
            double = aten._to_copy(x, dtype=torch.float64)
            single = aten._to_copy(double, dtype=torch.float32)
            relu = aten.relu(single)
            return (
                relu,  # output output
            )
        """
    assert_rewrites(Canonicalize(), before, after, ["same"])
