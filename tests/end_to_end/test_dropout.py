"""Dropout in a compiled step: off unless asked for, drawn by the seed, and PyTorch's in distribution."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gfcompile.frontend.losses import resolve_loss
from gfcompile.runtime.errors import StepError
from gfcompile.verify.compare import verify
from tests.lean import lean_compile
from tests.models import initialise

BATCH = 8


class DropPath(nn.Module):
    """Stochastic depth as model libraries write it."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        keep = x.new_empty((x.shape[0], 1, 1, 1)).bernoulli_(0.8)
        return x * keep.div_(0.8)


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.block = nn.Conv2d(8, 8, 3, padding=1)
        self.path = DropPath()
        self.maps = nn.Dropout2d(0.25)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        x = self.maps(x + self.path(self.block(x).relu()))
        return self.head(self.drop(x.mean((2, 3))))


@pytest.fixture(scope="module")
def model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        dropping = Dropping().eval()
        initialise(dropping)
    return dropping


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("dropout") / "dropping_step"


@pytest.fixture(scope="module")
def step(model, folder):
    x = torch.zeros(BATCH, 3, 8, 8)
    with lean_compile(model, x, layers=1, exact=True, dropout=True, out=folder) as compiled:
        yield compiled


@pytest.fixture(scope="module")
def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(BATCH, 3, 8, 8, generator=generator), torch.randint(0, 4, (BATCH,), generator=generator)


@pytest.mark.slow
def test_the_seed_decides(step, batch):
    first, again, other = (step.gradients(*batch, seed=seed)["head.weight"] for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_each_step_draws_anew_and_a_checkpoint_goes_on(step, batch, tmp_path):
    step.save_checkpoint(tmp_path / "start")
    losses = [step.train(*batch, lr=0.0) for _ in range(4)]
    assert len(set(losses)) == 4
    step.load_checkpoint(tmp_path / "start")
    assert [step.train(*batch, lr=0.0) for _ in range(4)] == losses


def test_predict_drops_nothing(step, model, batch):
    with torch.no_grad():
        expected = model(batch[0]).numpy()
    np.testing.assert_allclose(step.predict(batch[0]), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_equals_the_eager_graph_under_the_same_seed(step, model, folder):
    assert all(check.passed for check in verify(model, resolve_loss("cross_entropy"), folder))


@pytest.mark.slow
def test_the_mean_gradient_is_pytorch_s(step, model, batch):
    """Means over many draws of two generators: within five standard errors of each other, element by element."""
    draws = 400
    ours = np.stack([step.gradients(*batch, seed=seed)["head.weight"] for seed in range(draws)])
    torch.manual_seed(0)
    theirs = []
    trained = [part for part in model.modules() if isinstance(part, DropPath | nn.Dropout | nn.Dropout2d)]
    for part in trained:
        part.train()
    for _ in range(draws):
        loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
        theirs.append(torch.autograd.grad(loss, model.head.weight)[0].numpy())
    model.eval()
    expected = np.stack(theirs)
    error = np.sqrt((ours.var(axis=0) + expected.var(axis=0)) / draws)
    assert (np.abs(ours.mean(axis=0) - expected.mean(axis=0)) < 5 * error).all()
    assert np.allclose(ours.std(axis=0), expected.std(axis=0), rtol=0.5)


@pytest.mark.slow
def test_off_unless_asked_for(model, batch, tmp_path):
    with lean_compile(model, batch[0], layers=1, exact=True, out=tmp_path / "plain_step") as plain:
        assert {spec["role"] for spec in plain.manifest["inputs"]} == {"input", "target", "sample_weight"}
        first, second = (plain.gradients(*batch, seed=seed)["head.weight"] for seed in (1, 2))
    assert np.array_equal(first, second)
    loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
    expected = torch.autograd.grad(loss, model.head.weight)[0].numpy()
    np.testing.assert_allclose(first, expected, rtol=1e-4, atol=1e-6)


def test_a_seed_is_a_whole_number(step, batch):
    with pytest.raises(StepError, match=r"seed: 1\.5 is no whole number; pass an int"):
        step.train(*batch, seed=1.5)
