"""fold_frozen: what depends on frozen tensors alone becomes a constant, computed in float64 and rounded once."""

import torch

from gfcompile.passes.canonicalize import Canonicalize
from gfcompile.passes.fold_batchnorm import FoldBatchnorm
from gfcompile.passes.fold_frozen import FoldFrozen
from gfcompile.passes.remove_dead import RemoveDead
from gfcompile.step import Role, Value
from tests.passes.handwritten import assert_rewrites
from tests.passes.tiny import TIGHT, assert_same_numbers, network_step, numbers

BEFORE = (Canonicalize(), FoldBatchnorm())


def constants(step):
    return [value for value in step.inputs if value.role is Role.CONSTANT]


def test_only_the_outermost_frozen_expression_becomes_a_constant():
    """A trained weight is no constant, though what it is multiplied by is."""
    before = """
        def step(
            scale,  # parameter scale float32[3]
            w,  # parameter w float32[3]
            var,  # buffer var float32[3]
            x,  # input x float32[2, 3]
        ):
            add = aten.add.Scalar(var, 1e-05)
            rsqrt = aten.rsqrt(add)
            factor = aten.mul.Tensor(scale, rsqrt)
            trained = aten.mul.Tensor(w, factor)
            mul = aten.mul.Tensor(x, trained)
            return (
                mul,  # gradient w
            )
        """
    after = """
        def step(
            scale,  # parameter scale float32[3]
            w,  # parameter w float32[3]
            var,  # buffer var float32[3]
            x,  # input x float32[2, 3]
            folded_3_factor,  # constant folded.3.factor float32[3]
        ):
            add = aten.add.Scalar(var, 1e-05)
            rsqrt = aten.rsqrt(add)
            factor = aten.mul.Tensor(scale, rsqrt)
            trained = aten.mul.Tensor(w, folded_3_factor)
            mul = aten.mul.Tensor(x, trained)
            return (
                mul,  # gradient w
            )
        """
    assert_rewrites(FoldFrozen(), before, after, ["factor"], relative=TIGHT[torch.float32])


def test_equal_entries_become_a_fill():
    before = """
        def step(
            x,  # input x float32[2, 3]
        ):
            full = aten.full([2, 3], 2.0)
            neg = aten.neg(full)
            mul = aten.mul.Tensor(x, neg)
            return (
                mul,  # output output
            )
        """
    after = """
        def step(
            x,  # input x float32[2, 3]
        ):
            full = aten.full([2, 3], 2.0)
            full_default = aten.full([2, 3], -2.0, dtype=torch.float32)
            neg = aten.neg(full)
            mul = aten.mul.Tensor(x, full_default)
            return (
                mul,  # output output
            )
        """
    assert_rewrites(FoldFrozen(), before, after, ["neg"])


def test_rounds_once():
    """The folded weight is the float64 product, correctly rounded: not the product of rounded factors."""
    step = network_step(*BEFORE)
    original = {name: tensor.double() for name, tensor in step.tensors.items()}
    FoldFrozen().run(step)
    scale = original["norm.weight"] / (original["norm.running_var"] + 1e-5).sqrt()
    weight = (original["stem.weight"] * scale[:, None, None, None]).float()
    folded = [step.tensors[value.name] for value in constants(step) if step.tensors[value.name].dim() == 4]
    found = next(tensor for tensor in folded if tensor.shape == weight.shape)
    ulp = torch.finfo(torch.float32).eps * weight.abs()
    assert ((found - weight).abs() <= ulp).all()
    assert (found == weight).float().mean() > 0.9  # rsqrt and 1/sqrt may differ in the last bit of float64


def test_trained_tensors_stay_inputs():
    """A trained scale is no constant, though the statistics behind it are."""
    step = network_step(*BEFORE, layers=2, train=("norm",))
    before = numbers(step, torch.float32)
    FoldFrozen().run(step)
    assert {Value(Role.PARAMETER, name) for name in ("norm.weight", "norm.bias", "stem.weight")} <= readers(step)
    assert Value(Role.BUFFER, "norm.running_var") not in readers(step)
    assert_same_numbers(before, numbers(step, torch.float32), torch.float32)


def test_updated_statistics_are_not_folded():
    step = network_step(*BEFORE, FoldFrozen(), RemoveDead(), batchnorm="train")
    assert {Value(Role.BUFFER, "norm.running_mean"), Value(Role.BUFFER, "norm.running_var")} <= readers(step)


def readers(step):
    """Inputs that the outputs depend on."""
    RemoveDead().run(step)
    return {value for value, node in zip(step.inputs, step.placeholders(), strict=True) if node.users}
