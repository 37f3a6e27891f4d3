"""Compiled training with every loss follows torch.nn for 20 steps, short batches among them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gfcompile
from gfcompile.errors import UserError
from gfcompile.runtime.errors import StepError
from tests.selection import fast
from tests.store import Store
from tests.tolerances import TRAINING_STEPS, assert_near, relative_error

STEPS, BATCH, CLASSES, LR = 20, 4, 3, 0.1
SHAPE = (BATCH, 2, 6, 6)


class Pixels(nn.Module):
    """An output a pixel: [N, classes, H, W]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(2, CLASSES, 3, padding=1)

    def forward(self, x: Tensor) -> Any:
        return self.conv(x)


class Vectors(Pixels):
    """[N, classes], in a dictionary with something else."""

    def forward(self, x: Tensor) -> Any:
        pixels = self.conv(x)
        return {"aux": pixels, "logits": pixels.mean((2, 3))}


def both(output: dict[str, Tensor], target: Tensor) -> Tensor:
    """A user's: it reads all of the output, and a target of its own kind."""
    return nn.functional.cross_entropy(output["logits"], target) + output["aux"].square().mean()


both.target_example = lambda output: torch.zeros(len(output["logits"]), dtype=torch.int64)  # type: ignore[attr-defined]

WEIGHT = torch.tensor([1.0, 2.0, 0.5])
CASES: dict[str, tuple[type[nn.Module], Any]] = {
    "cross_entropy": (
        Pixels,
        nn.CrossEntropyLoss(weight=WEIGHT, ignore_index=255, label_smoothing=0.2),
    ),
    "cross_entropy of vectors": (Vectors, nn.CrossEntropyLoss(weight=WEIGHT, ignore_index=1)),
    "bce_with_logits": (Pixels, nn.BCEWithLogitsLoss(pos_weight=WEIGHT.view(CLASSES, 1, 1))),
    "mse, summed": (Pixels, nn.MSELoss(reduction="sum")),
    "l1": (Pixels, nn.L1Loss()),
    "smooth_l1": (Pixels, nn.SmoothL1Loss(beta=0.5)),
    "huber": (Pixels, nn.HuberLoss(delta=0.7)),
    "callable": (Vectors, both),
}
RATES = {"mse, summed": LR / 300, "cross_entropy": 5 * LR, "l1": LR / 2}


def draw(loss: Any, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(SHAPE, generator=generator)
    classes = torch.randint(0, CLASSES, (BATCH, *SHAPE[2:]), generator=generator)
    if isinstance(loss, nn.CrossEntropyLoss) and loss.ignore_index == 255:
        classes[torch.rand(classes.shape, generator=generator) < 0.3] = 255
        return x, classes
    if isinstance(loss, nn.CrossEntropyLoss) or loss is both:
        return x, torch.tensor([0, 1, 2, seed % CLASSES])[torch.randperm(BATCH, generator=generator)]
    values = torch.randn((BATCH, CLASSES, *SHAPE[2:]), generator=generator)
    return x, values.sign().relu() if isinstance(loss, nn.BCEWithLogitsLoss) else values


def apply(loss: Any, output: Any, y: Tensor) -> Tensor:
    return loss(output["logits"] if isinstance(output, dict) and loss is not both else output, y)


def compiled(name: str, store: Store) -> gfcompile.CompiledStep:
    make, loss = CASES[name]
    options = {"exact": True, "train": "*", "lr": RATES.get(name, LR), "momentum": 0.9}
    out = f"{name.replace(' ', '_').replace(',', '')}_step"
    return gfcompile.load(store.compiled(make(), torch.zeros(SHAPE), out, loss=loss, **options))


@pytest.mark.slow
@pytest.mark.parametrize("name", fast(CASES, ["cross_entropy", "callable"]))
def test_follows_torch(name: str, store: Store) -> None:
    """Losses and weights at every step. Each fifth batch is short: padded inside, it counts as the short one."""
    make, loss = CASES[name]
    model, lr = make(), RATES.get(name, LR)
    start = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    with compiled(name, store) as step:
        for index in range(STEPS):
            x, y = draw(loss, index)
            samples = 3 if index % 5 == 4 and loss is not both else BATCH
            optimizer.zero_grad()
            expected = apply(loss, model(x[:samples]), y[:samples])
            expected.backward()
            optimizer.step()
            found = step.train(x[:samples], y[:samples])
            assert_near(found, expected.detach(), TRAINING_STEPS, f"loss of step {index}")
            state = step.state_dict()
            for key, tensor in model.state_dict().items():
                assert_near(state[key], tensor, TRAINING_STEPS, f"{key} after step {index}")
    for key, tensor in model.state_dict().items():
        assert relative_error(tensor, start[key]) > 100 * TRAINING_STEPS, f"{key} stays where it is: it proves nothing"


def test_labels_are_checked_but_for_the_ignored_one(store: Store) -> None:
    _, loss = CASES["cross_entropy"]
    with compiled("cross_entropy", store) as step:
        x, y = draw(loss, 0)
        assert step.train(x, y.to(torch.uint8), lr=0.0) == step.train(x, y, lr=0.0)
        y[1, 2, 3] = 254
        with pytest.raises(StepError, match=r"label 254 at index \(1, 2, 3\) is outside 0 to 2"):
            step.train(x, y)


def test_a_batch_of_which_nothing_counts(store: Store) -> None:
    """As PyTorch has it: the loss is no number, the gradients are zero."""
    make, loss = CASES["cross_entropy"]
    x, y = draw(loss, 0)
    y[:] = 255
    model = make()
    expected = loss(model(x), y)
    expected.backward()
    with compiled("cross_entropy", store) as step:
        assert expected.isnan()
        with pytest.warns(RuntimeWarning, match="the loss is nan at step 1, and all parameters are still finite"):
            assert math.isnan(step.train(x, y, lr=0.0))
        assert model.conv.weight.grad.abs().max() == np.abs(step.gradients(x, y)["conv.weight"]).max() == 0


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (
            nn.CrossEntropyLoss(weight=torch.ones(4)),
            "loss: 'cross_entropy' has 4 weights for 3 classes; give one per class",
        ),
        (
            lambda output, target: output,
            "loss: '<lambda>' returned 'shape [4, 3, 6, 6]'; it must return a scalar tensor, such as losses.mean()",
        ),
    ],
    ids=["weights", "map"],
)
def test_what_only_the_trace_can_refuse(loss: Any, text: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        gfcompile.compile(Pixels(), torch.zeros(SHAPE), exact=True, train="*", loss=loss, out=tmp_path / "never_step")
    assert str(caught.value) == text
