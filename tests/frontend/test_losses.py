"""Losses equal PyTorch's at equal weights, weigh samples, and refuse what they cannot apply to."""

import pytest
import torch
import torch.nn.functional as F

from gfcompile.errors import UserError
from gfcompile.frontend.losses import resolve_loss


def text_of(action) -> str:
    with pytest.raises(UserError) as caught:
        action()
    return str(caught.value)


@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 4, 3)])
def test_cross_entropy_equals_pytorch(shape):
    output = torch.randn(shape, dtype=torch.float64)
    target = torch.randint(7, (5, *shape[2:]))
    loss = resolve_loss("cross_entropy").apply(output, target, torch.ones(5, dtype=torch.float64))
    torch.testing.assert_close(loss, F.cross_entropy(output, target))


@pytest.mark.parametrize("shape", [(5,), (5, 7), (5, 2, 4, 3)])
def test_mse_equals_pytorch(shape):
    output, target = torch.randn(2, *shape, dtype=torch.float64)
    loss = resolve_loss("mse").apply(output, target, torch.ones(5, dtype=torch.float64))
    torch.testing.assert_close(loss, F.mse_loss(output, target))


@pytest.mark.parametrize("name", ["cross_entropy", "mse"])
def test_samples_of_weight_zero_do_not_count(name):
    loss = resolve_loss(name)
    output = torch.randn(5, 3, 2, 2, dtype=torch.float64, requires_grad=True)
    target = loss.target_like(output)
    ones = torch.ones(3, dtype=torch.float64)
    padded = loss.apply(output, target, torch.cat([ones, 0 * ones[:2]]))
    torch.testing.assert_close(padded, loss.apply(output[:3], target[:3], ones))
    padded.backward()
    assert output.grad is not None
    assert output.grad[3:].abs().max() == 0
    assert output.grad[:3].abs().max() > 0


def test_target_examples():
    output = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    classes = resolve_loss("cross_entropy").target_like(output)
    assert (classes.shape, classes.dtype) == ((2, 4, 5), torch.int64)
    assert resolve_loss("cross_entropy").target_like(torch.randn(2, 3)).shape == (2,)
    values = resolve_loss("mse").target_like(output)
    assert (values.shape, values.dtype) == (output.shape, torch.float32)


def l1(output, target):
    return (output - target).abs().mean()


def with_target(output, target):
    return F.nll_loss(output, target)


with_target.target_example = lambda output: torch.zeros(output.shape[0], dtype=torch.int64)


def test_callable_ignores_the_weights():
    loss = resolve_loss(l1)
    output, target = torch.randn(4, 3), torch.randn(4, 3)
    assert (loss.name, loss.per_sample) == ("l1", False)
    assert loss.apply(output, target, torch.zeros(4)) == F.l1_loss(output, target)
    assert loss.target_like(output).dtype == torch.float32


def test_callable_may_describe_its_target():
    assert resolve_loss(with_target).target_like(torch.randn(4, 3)).dtype == torch.int64


@pytest.mark.parametrize("spec", ["torch.nn.functional:smooth_l1_loss", "torch.nn:SmoothL1Loss"])
def test_loss_by_module_and_name(spec):
    loss = resolve_loss(spec)
    output, target = torch.randn(4, 3), torch.randn(4, 3)
    assert loss.name == spec
    assert loss.apply(output, target, torch.ones(4)) == F.smooth_l1_loss(output, target)


def test_a_loss_in_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "gf_test_my_losses.py").write_text(
        "def double(output, target):\n    return 2 * (output - target).sum()\n"
    )
    monkeypatch.chdir(tmp_path)
    loss = resolve_loss("gf_test_my_losses:double")
    assert loss.apply(torch.ones(2), torch.zeros(2), torch.ones(2)) == 4


def test_unknown_name_lists_the_known():
    assert text_of(lambda: resolve_loss("hinge")) == (
        "loss: unknown 'hinge'; use cross_entropy, mse, or module:callable"
    )


def test_missing_module_and_name():
    assert text_of(lambda: resolve_loss("no_such_package:f")) == (
        "loss: cannot import 'no_such_package' (ModuleNotFoundError: No module named 'no_such_package');"
        " run from the folder that holds it, or install it"
    )
    assert text_of(lambda: resolve_loss("torch.nn:NoLoss")) == (
        "loss: module 'torch.nn' has no 'NoLoss'; check the name after the colon"
    )
    assert text_of(lambda: resolve_loss("torch.nn:")) == (
        "loss: 'torch.nn:' is not of the form package.module:name; write both parts"
    )
    assert text_of(lambda: resolve_loss("math:pi")) == (
        "loss: 'math:pi' is not callable; give a function of (output, target) that returns a scalar"
    )


def test_output_that_is_not_a_tensor():
    expected = (
        "loss: the model returned a 'tuple', not a tensor;"
        " wrap it in a module that returns the one output 'cross_entropy' applies to"
    )
    loss = resolve_loss("cross_entropy")
    outputs = (torch.zeros(2, 3), torch.zeros(2, 3))
    assert text_of(lambda: loss.target_like(outputs)) == expected
    assert text_of(lambda: loss.apply(outputs, torch.zeros(2), torch.ones(2))) == expected


def test_output_of_wrong_rank():
    expected = (
        "loss: 'cross_entropy' needs an output of shape [N, classes] or [N, classes, H, W], not [4];"
        " change the model or the loss"
    )
    loss = resolve_loss("cross_entropy")
    assert text_of(lambda: loss.target_like(torch.zeros(4))) == expected
    assert text_of(lambda: loss.apply(torch.zeros(4), torch.zeros(4), torch.ones(4))) == expected
    assert text_of(lambda: resolve_loss("mse").apply(torch.tensor(1.0), torch.tensor(1.0), torch.ones(1))) == (
        "loss: 'mse' needs an output of shape [N, ...], not []; change the model or the loss"
    )


def test_callable_must_return_a_scalar():
    per_value = resolve_loss(lambda output, target: output - target)
    assert text_of(lambda: per_value.apply(torch.ones(2, 3), torch.ones(2, 3), torch.ones(2))) == (
        "loss: '<lambda>' returned 'shape [2, 3]'; it must return a scalar tensor, such as losses.mean()"
    )
    number = resolve_loss(lambda output, target: 1.0)
    assert text_of(lambda: number.apply(torch.ones(2), torch.ones(2), torch.ones(2))) == (
        "loss: '<lambda>' returned 'float'; it must return a scalar tensor, such as losses.mean()"
    )
