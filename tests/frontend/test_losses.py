"""Losses equal PyTorch's at equal weights, weigh samples, and refuse what they cannot apply to."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gfcompile.errors import UserError
from gfcompile.frontend.losses import main_output, resolve_loss
from tests.passes.tiny import assert_close

NAMES = "cross_entropy, bce_with_logits, mse, l1, smooth_l1, huber"
CLASSES = 7


def text_of(action) -> str:
    with pytest.raises(UserError) as caught:
        action()
    return str(caught.value)


WEIGHT = torch.arange(1.0, CLASSES + 1)
MODULES = {
    "cross_entropy": nn.CrossEntropyLoss(),
    "smoothed": nn.CrossEntropyLoss(label_smoothing=0.1),
    "weighted": nn.CrossEntropyLoss(weight=WEIGHT),
    "ignoring": nn.CrossEntropyLoss(ignore_index=3),
    "ignoring_255": nn.CrossEntropyLoss(ignore_index=255, label_smoothing=0.2),
    "all": nn.CrossEntropyLoss(weight=WEIGHT, ignore_index=255, label_smoothing=0.3),
    "cross_entropy_sum": nn.CrossEntropyLoss(weight=WEIGHT, ignore_index=255, reduction="sum"),
    "bce": nn.BCEWithLogitsLoss(),
    "bce_pos_weight": nn.BCEWithLogitsLoss(pos_weight=torch.tensor(3.0)),
    "bce_weight": nn.BCEWithLogitsLoss(weight=torch.tensor([0.3])),
    "mse": nn.MSELoss(),
    "mse_sum": nn.MSELoss(reduction="sum"),
    "l1": nn.L1Loss(),
    "smooth_l1": nn.SmoothL1Loss(),
    "smooth_l1_beta": nn.SmoothL1Loss(beta=0.3),
    "smooth_l1_zero": nn.SmoothL1Loss(beta=0.0),
    "huber": nn.HuberLoss(),
    "huber_delta": nn.HuberLoss(delta=0.4),
}


def batch(module: nn.Module, shape: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """In float32: the settings of a built-in loss are."""
    generator = torch.Generator().manual_seed(0)
    output = torch.randn(shape, generator=generator)
    if isinstance(module, nn.CrossEntropyLoss):
        target = torch.randint(CLASSES, (shape[0], *shape[2:]), generator=generator)
        if module.ignore_index == 255:
            target.view(-1)[1::3] = 255
        return output, target
    target = torch.randn(shape, generator=generator)
    return output, target.sign().relu() if isinstance(module, nn.BCEWithLogitsLoss) else target


@pytest.mark.parametrize("shape", [(5, CLASSES), (5, CLASSES, 4, 3)], ids=["flat", "image"])
@pytest.mark.parametrize("name", MODULES)
def test_equals_pytorch(name, shape):
    module = MODULES[name]
    output, target = batch(module, shape)
    loss = resolve_loss(module)
    found, expected = (leaf(output) for _ in range(2))
    value, wanted = loss.apply(found, target, torch.ones(5)), module(expected, target)
    assert_close(wanted.detach(), value.detach(), 1e-6, name)
    value.backward()
    wanted.backward()
    assert_close(expected.grad, found.grad, 1e-6, f"gradient of {name}")


@pytest.mark.parametrize("shape", [(5, CLASSES), (5, CLASSES, 4, 3)], ids=["flat", "image"])
@pytest.mark.parametrize("name", MODULES)
def test_padding_of_weight_zero_gives_the_short_batch(name, shape):
    module = MODULES[name]
    output, target = batch(module, shape)
    padded, short = leaf(output), leaf(output[:3])
    value = resolve_loss(module).apply(padded, target, torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0]))
    wanted = module(short, target[:3])
    assert_close(wanted.detach(), value.detach(), 1e-6, name)
    value.backward()
    wanted.backward()
    assert_close(short.grad, padded.grad[:3], 1e-6, name)
    assert padded.grad[3:].abs().max() == 0


def leaf(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone().requires_grad_()


def test_a_vector_of_outputs():
    output, target = torch.randn(2, 5)
    assert_close(F.mse_loss(output, target), resolve_loss("mse").apply(output, target, torch.ones(5)), 1e-6)


def test_nothing_counts_as_in_pytorch():
    output, target = torch.randn(2, CLASSES), torch.full((2,), 255)
    module = nn.CrossEntropyLoss(ignore_index=255)
    assert module(output, target).isnan()
    assert resolve_loss(module).apply(output, target, torch.ones(2)).isnan()


@pytest.mark.parametrize(
    ("spec", "module"),
    [
        ("cross_entropy:label_smoothing=0.1,ignore_index=255,weight=1/2/3/4/5/6/7", None),
        ({"name": "cross_entropy", "label_smoothing": 0.1, "ignore_index": 255, "weight": WEIGHT.numpy()}, None),
        ("bce_with_logits:pos_weight=2", nn.BCEWithLogitsLoss(pos_weight=torch.tensor(2.0))),
        ("smooth_l1:beta=0.5", nn.SmoothL1Loss(beta=0.5)),
        ({"name": "huber", "delta": 2}, nn.HuberLoss(delta=2.0)),
        ("mse:reduction=sum", nn.MSELoss(reduction="sum")),
        ("torch.nn:SmoothL1Loss", nn.SmoothL1Loss()),
        ({"name": "torch.nn:L1Loss"}, nn.L1Loss()),
    ],
    ids=str,
)
def test_ways_to_write_one(spec, module):
    module = module or nn.CrossEntropyLoss(weight=WEIGHT, label_smoothing=0.1, ignore_index=255)
    output, target = batch(module, (5, CLASSES))
    loss, read = resolve_loss(spec), resolve_loss(module)
    assert loss.per_sample
    assert loss.name == read.name
    assert loss.apply(output, target, torch.ones(5)) == read.apply(output, target, torch.ones(5))


def test_weights_from_a_file(tmp_path):
    np.save(tmp_path / "w.npy", WEIGHT.numpy())
    assert resolve_loss(f"cross_entropy:weight={tmp_path}/w.npy").settings == {"weight": WEIGHT.tolist()}


@pytest.mark.parametrize("name", MODULES)
def test_the_manifest_says_it_all(name):
    output, target = batch(MODULES[name], (5, CLASSES))
    loss = resolve_loss(MODULES[name])
    again = resolve_loss(json.loads(json.dumps({"name": loss.name, **loss.settings})))
    assert again.settings == loss.settings
    assert again.apply(output, target, torch.ones(5)) == loss.apply(output, target, torch.ones(5))


def test_target_examples():
    output = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    classes = resolve_loss("cross_entropy").target_like(output)
    assert (classes.shape, classes.dtype) == ((2, 4, 5), torch.int64)
    assert resolve_loss("cross_entropy").target_like(torch.randn(2, 3)).shape == (2,)
    for name in ("bce_with_logits", "mse", "l1", "smooth_l1", "huber"):
        values = resolve_loss(name).target_like(output)
        assert (values.shape, values.dtype) == (output.shape, torch.float32)


A, B = torch.zeros(2, 3), torch.ones(2, 3)


@pytest.mark.parametrize(
    ("output", "main"),
    [
        (A, A),
        ((A, B), A),
        ([None, B], B),
        ({"aux": B, "out": A}, A),
        ({"hidden": B, "logits": (A, B)}, A),
        ({"first": (B,), "second": A}, B),
        (((), [{"x": A}], B), A),
    ],
    ids=["tensor", "tuple", "list", "out", "logits", "first", "nested"],
)
def test_built_in_losses_apply_to_one_tensor_of_the_output(output, main):
    assert main_output(output) is main
    loss = resolve_loss("mse")
    assert loss.target_like(output).shape == main.shape
    assert loss.apply(output, torch.zeros(2, 3), torch.ones(2)) == main.square().mean()


def both(output, target):
    return (output["a"] - target).abs().mean() + output["b"].square().mean()


def with_target(output, target):
    return F.nll_loss(output, target)


with_target.target_example = lambda output: torch.zeros(output.shape[0], dtype=torch.int64)


def test_a_callable_gets_the_output_whole_and_ignores_the_weights():
    loss = resolve_loss(both)
    output = {"a": torch.randn(4, 3), "b": torch.randn(4, 2)}
    target = torch.randn(4, 3)
    assert (loss.name, loss.per_sample, loss.settings) == ("both", False, {})
    assert loss.apply(output, target, torch.zeros(4)) == both(output, target)
    assert loss.target_like(output).shape == (4, 3)
    assert loss.target_like(output).dtype == torch.float32


def test_a_callable_may_describe_its_target():
    assert resolve_loss(with_target).target_like(torch.randn(4, 3)).dtype == torch.int64


def test_a_module_of_the_user_s_is_called():
    class Mine(nn.MSELoss):
        def forward(self, output, target):
            return 2 * super().forward(output, target)

    loss = resolve_loss(Mine())
    output, target = torch.randn(4, 3), torch.randn(4, 3)
    assert (loss.name, loss.per_sample) == ("Mine", False)
    assert loss.apply(output, target, torch.ones(4)) == 2 * F.mse_loss(output, target)


def test_loss_by_module_and_name():
    loss = resolve_loss("torch.nn.functional:smooth_l1_loss")
    output, target = torch.randn(4, 3), torch.randn(4, 3)
    assert (loss.name, loss.per_sample) == ("torch.nn.functional:smooth_l1_loss", False)
    assert loss.apply(output, target, torch.ones(4)) == F.smooth_l1_loss(output, target)


def test_a_loss_in_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "gf_test_my_losses.py").write_text(
        "def double(output, target):\n    return 2 * (output - target).sum()\n"
    )
    monkeypatch.chdir(tmp_path)
    loss = resolve_loss("gf_test_my_losses:double")
    assert loss.apply(torch.ones(2), torch.zeros(2), torch.ones(2)) == 4


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("hinge", f"loss: unknown 'hinge'; use {NAMES}, or module:callable"),
        ({"name": "hinge", "margin": 1}, f"loss: unknown 'hinge'; use {NAMES}, or module:callable"),
        (
            {"weight": 1},
            "loss: a mapping needs a name; write {'name': 'cross_entropy', ...}, not {'weight': 1}",
        ),
        (
            "cross_entropy:smoothing=0.1",
            "loss: 'cross_entropy' has no setting 'smoothing'; it has weight, ignore_index, label_smoothing, reduction",
        ),
        (
            "cross_entropy:label_smoothing=2",
            "loss: cross_entropy: label_smoothing '2' must be a number from 0 to 1",
        ),
        (
            "cross_entropy:ignore_index=0.5",
            "loss: cross_entropy: ignore_index '0.5' must be a whole number, such as 255",
        ),
        (
            "cross_entropy:weight=heavy",
            "loss: cross_entropy: weight 'heavy': is neither numbers joined by / nor a readable .npy file",
        ),
        (
            {"name": "cross_entropy", "weight": [1, "a"]},
            "loss: cross_entropy: weight '[1, 'a']' must be numbers, one per class",
        ),
        (
            "cross_entropy:weight=1/-2",
            "loss: cross_entropy: weight: every weight must be a finite number, 0 or more",
        ),
        ("smooth_l1:beta=-1", "loss: smooth_l1: beta '-1' must be a finite number, 0 or more"),
        ("huber:delta=high", "loss: huber: delta 'high' must be a finite number, 0 or more"),
        (
            nn.MSELoss(reduction="none"),
            "loss: mse: reduction 'none' must be mean or sum: a step trains on one number",
        ),
        (
            "no_such_package:f",
            "loss: cannot import 'no_such_package' (ModuleNotFoundError: No module named 'no_such_package');"
            " run from the folder that holds it, or install it",
        ),
        ("torch.nn:NoLoss", "loss: module 'torch.nn' has no 'NoLoss'; check the name after the colon"),
        ("torch.nn:", "loss: 'torch.nn:' is not of the form package.module:name; write both parts"),
        ("math:pi", "loss: 'math:pi' is not callable; give a function of (output, target) that returns a scalar"),
    ],
    ids=str,
)
def test_refusals(spec, text):
    assert text_of(lambda: resolve_loss(spec)) == text


def test_weights_that_do_not_fit_the_output():
    loss = resolve_loss("cross_entropy:weight=1/2")
    assert text_of(lambda: loss.apply(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64), torch.ones(2))) == (
        "loss: 'cross_entropy' has 2 weights for 3 classes; give one per class"
    )
    loss = resolve_loss("bce_with_logits:pos_weight=1/2")
    message = text_of(lambda: loss.apply(torch.zeros(2, 3), torch.zeros(2, 3), torch.ones(2)))
    assert message.startswith("loss: 'bce_with_logits' cannot be applied (")
    assert message.endswith("); check its settings")


def test_output_without_a_tensor():
    loss = resolve_loss("cross_entropy")
    expected = (
        "loss: the model returned a 'tuple' without a tensor in front;"
        " wrap it in a module that returns what 'cross_entropy' applies to"
    )
    assert text_of(lambda: loss.target_like((None, 1))) == expected
    assert text_of(lambda: loss.apply((None, 1), torch.zeros(2), torch.ones(2))) == expected


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


def test_callables_that_fail():
    for spec, reason in (
        ("os:system", "TypeError: system() takes at most 1 argument (2 given)"),
        ("operator:floordiv", "RuntimeError: The size of tensor a (3) must match the size of tensor b (2)"),
    ):
        loss = resolve_loss(spec)
        text = text_of(lambda loss=loss: loss.apply(torch.ones(2, 3), torch.ones(2, 2), torch.ones(2)))
        assert text.startswith(f"loss: '{spec}' fails on (output, target) ({reason}")
        assert text.endswith("); give a function of both that returns a scalar tensor")
    assert text_of(lambda: resolve_loss("torch.nn:Linear")) == (
        "loss: 'torch.nn:Linear' cannot be made without arguments (TypeError: Linear.__init__() missing 2 required"
        " positional arguments: 'in_features' and 'out_features'); name a function of (output, target)"
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
