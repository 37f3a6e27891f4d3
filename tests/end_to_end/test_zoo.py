"""Every idiom of the zoo compiles: exact steps equal PyTorch eager, filtered ones eager with the oracle inside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gfcompile
from tests.end_to_end.eager import Eager
from tests.lean import lean_compile
from tests.models.zoo import INPUTS, ZOO
from tests.selection import often
from tests.tolerances import (
    EXACT_GRADIENT,
    FILTERED_GRADIENT,
    LOGITS,
    LOSS,
    LOSS_OVER_TRAINING,
    assert_near,
)

pytestmark = pytest.mark.slow

STEPS, LR, SGD = 3, 0.02, {"momentum": 0.9, "weight_decay": 1e-4}

# The last two convolutions that count; a conv head is trained exactly and counts neither way.
LAST_TWO = {
    "plain": ["2", "5"],
    "conv_head": ["0.0", "1.0"],
    "grouped": ["1.0", "2.0"],
    "separable": ["3.0", "4.0"],
    "concat": ["pooled.1.0", "merge.0"],
    "squeeze_excite": ["gate.excite", "project.0"],
    "dilated": ["3", "5"],
    "regression": ["mix", "last"],
}


def loss_of(name: str) -> str:
    return "mse" if name == "regression" else "cross_entropy"


def batch_for(name: str, model: nn.Module, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(INPUTS[name], generator=generator)
    with torch.no_grad():
        output = model.eval()(x)
    if loss_of(name) == "mse":
        return x, torch.randn(output.shape, generator=generator)
    return x, torch.randint(0, output.shape[1], (len(x),), generator=generator)


def compile_and_compare(
    name: str, out: Path, tolerance: float, patches: dict[str, int] | None = None, **options: Any
) -> gfcompile.CompiledStep:
    """Gradients of one batch, losses of three steps, logits after them; `patches` are the layers to be filtered."""
    model = ZOO[name]()
    x, y = batch_for(name, model, seed=0)
    with torch.no_grad():
        untrained = model(x)
    step = lean_compile(model, x, loss=loss_of(name), lr=LR, out=out, **SGD, **options)
    mode = options.get("compat") or "unbiased"
    trained = step.manifest["gradients"]
    eager = Eager(model, trained, loss=loss_of(name), lr=LR, patches=patches, mode=mode, **SGD)
    assert step.filtered_layers == list(patches or {})
    assert_near(step.predict(x), untrained, LOGITS, "logits before training")
    loss, expected = eager.gradients(x, y)
    found = step.gradients(x, y)
    assert found.keys() == expected.keys()
    for parameter, wanted in expected.items():
        assert_near(found[parameter], wanted, tolerance, parameter)
    assert step.train(x, y) == pytest.approx(loss, rel=LOSS)
    eager.optimizer.step()
    for seed in range(1, STEPS):
        batch = batch_for(name, model, seed)
        assert step.train(*batch) == pytest.approx(eager.train(*batch), rel=LOSS_OVER_TRAINING)
    assert_near(step.predict(x), eager.predict(x), LOSS_OVER_TRAINING, "logits after training")
    assert abs(step.predict(x) - untrained.numpy()).max() > 0
    return step


@pytest.mark.parametrize("name", often(ZOO, ["regression"]))
def test_exact_step_equals_eager(name: str, tmp_path: Path) -> None:
    step = compile_and_compare(name, tmp_path / "zoo_step", EXACT_GRADIENT, exact=True, train="*")
    everything = {parameter for parameter, _ in ZOO[name]().named_parameters()}
    assert set(step.manifest["gradients"]) == everything
    assert step.refusals == []


@pytest.mark.parametrize("name", often(ZOO, ["conv_head", "separable", "squeeze_excite"]))
def test_filtered_step_equals_the_oracle(name: str, tmp_path: Path) -> None:
    patches = dict.fromkeys(LAST_TWO[name], 2)
    step = compile_and_compare(name, tmp_path / "zoo_step", FILTERED_GRADIENT, patches, layers=2, r=2)
    assert step.refusals == []


def test_reference_mode_refuses_groups_it_has_no_formula_for(tmp_path: Path) -> None:
    """The refused layers train exactly."""
    step = compile_and_compare(
        "grouped", tmp_path / "zoo_step", FILTERED_GRADIENT, {"0.0": 2}, layers=3, r=2, compat="reference"
    )
    reason = "the reference formulas know groups=1 and depthwise only, not groups="
    assert sorted(step.refusals) == [("1.0", f"{reason}2"), ("2.0", f"{reason}4")]


class Transposed(nn.Module):
    """Up and down again: a transposed convolution has no filtered form."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 6, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(6, 4, 2, stride=2)
        self.head = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.up(torch.relu(self.down(x)))).mean((2, 3)))


def test_transposed_convolution_is_refused_and_trained_exactly(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Transposed()
    x, y = torch.randn(2, 3, 8, 8), torch.tensor([1, 3])
    step = lean_compile(model, x, layers=2, r=2, out=tmp_path / "up_step")
    assert step.refusals == [("up", "it is a transposed convolution; gradient filtering is defined for ordinary ones")]
    assert step.filtered_layers == ["down"]
    _, expected = Eager(model, step.manifest["gradients"], patches={"down": 2}).gradients(x, y)
    for name, found in step.gradients(x, y).items():
        assert_near(found, expected[name], EXACT_GRADIENT, name)
