"""Exact compiled training follows PyTorch eager, step by step, under both batch norm policies."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gfcompile
from tests.end_to_end.conftest import CLASSES, SGD, random_batch
from tests.end_to_end.eager import Eager
from tests.models import randomise_statistics
from tests.models.mobilenet import mobilenet_v2, short_mobilenet_v2
from tests.models.resnet import resnet10, resnet18
from tests.selection import often
from tests.store import Store
from tests.tolerances import (
    LOGITS,
    LOSS_OVER_TRAINING,
    STATISTICS_AFTER_ONE_STEP,
    STATISTICS_OVER_TRAINING,
    assert_near,
)

pytestmark = pytest.mark.slow

STEPS = 20
LR = 0.005  # at 0.02, PyTorch in float32 and in float64 drift 8e-4 apart: a flipped ReLU6 is enough
SHAPE = (8, 3, 64, 64)
MODELS: dict[str, Callable[[], nn.Module]] = {
    "resnet18": lambda: resnet18(CLASSES, width=16),
    "mobilenet_v2": lambda: mobilenet_v2(CLASSES, 0.25),
    "resnet10": lambda: resnet10(CLASSES, width=16),
    "short_mobilenet_v2": lambda: short_mobilenet_v2(CLASSES, 0.25),
}


@dataclass(frozen=True)
class Run:
    """A compiled step and its peer after the same 20 batches."""

    start: nn.Module
    step: gfcompile.CompiledStep
    eager: Eager
    losses: list[float]
    expected: list[float]
    first_states: tuple[dict[str, Tensor], dict[str, Tensor]]  # the step's and eager's after one batch
    batchnorm: str


RUNS = [f"{model}-{batchnorm}" for model in MODELS for batchnorm in ("eval", "train")]


@pytest.fixture(scope="module", params=often(RUNS, ["short_mobilenet_v2-train"]))
def run(request: pytest.FixtureRequest, store: Store) -> Run:
    name, batchnorm = request.param.split("-")
    torch.manual_seed(0)
    model = randomise_statistics(MODELS[name](), seed=0)
    example, _ = random_batch(SHAPE, seed=99)
    options = {"layers": 5, "exact": True, "batchnorm": batchnorm, "lr": LR, **SGD}
    step = gfcompile.load(store.compiled(model, example, f"{name}_step", **options))
    eager = Eager(model, step.manifest["gradients"], batchnorm=batchnorm, lr=LR, **SGD)
    batches = [random_batch(SHAPE, seed) for seed in range(STEPS)]
    losses, expected = [step.train(*batches[0])], [eager.train(*batches[0])]
    first_states = step.state_dict(), copy.deepcopy(eager.model.state_dict())
    losses += [step.train(x, y) for x, y in batches[1:]]
    expected += [eager.train(x, y) for x, y in batches[1:]]
    return Run(model, step, eager, losses, expected, first_states, batchnorm)


def test_losses_follow_eager(run: Run) -> None:
    assert min(run.expected) > 0.5, "near zero a relative bound says nothing: lower the learning rate"
    assert max(run.expected) < 20, "a diverging peer says nothing: lower the learning rate"
    np.testing.assert_allclose(run.losses, run.expected, rtol=LOSS_OVER_TRAINING)
    assert run.step.steps == STEPS


def test_all_the_named_layers_were_trained(run: Run) -> None:
    """Five convolutions and the classifier moved, and nothing else but batch norm statistics."""
    before, after = run.start.state_dict(), run.step.state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    statistics = {name for name in moved if "running_" in name or "num_batches" in name}
    assert moved - statistics == set(run.step.manifest["gradients"])
    assert len(run.step.manifest["gradients"]) == 5 + 2
    assert bool(statistics) == (run.batchnorm == "train")


def test_batch_norm_statistics_follow_eager(run: Run) -> None:
    expected, found, start = run.eager.model.state_dict(), run.step.state_dict(), run.start.state_dict()
    tracked = [name for name in expected if name.endswith("num_batches_tracked")]
    assert tracked
    for name in tracked:
        assert found[name].dtype == torch.int64
        assert found[name].item() == expected[name].item() == (STEPS if run.batchnorm == "train" else 0)
    for name in expected:
        if "running_" in name:
            early, wanted = (state[name] for state in run.first_states)
            assert_near(early, wanted, STATISTICS_AFTER_ONE_STEP, f"{name} after one step")
            assert_near(found[name], expected[name], STATISTICS_OVER_TRAINING, name)
            assert torch.equal(found[name], start[name]) == (run.batchnorm == "eval"), name


def test_predict_uses_what_was_learned(run: Run) -> None:
    """Trained weights and updated statistics: eager's logits after training, far from those before."""
    x, _ = random_batch(SHAPE, seed=1000)
    found = run.step.predict(x)
    with torch.no_grad():
        before = run.start.eval()(x)
    assert_near(found, run.eager.predict(x), LOSS_OVER_TRAINING, "logits against eager")
    assert np.abs(found - before.numpy()).max() > 0.1
    restored = copy.deepcopy(run.start)
    restored.load_state_dict(run.step.state_dict(), strict=True)
    with torch.no_grad():
        assert_near(found, restored(x), LOGITS, "logits against the state_dict")
