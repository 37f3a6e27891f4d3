"""Compiled training follows torch.optim for 20 steps, each setting in one group or another, and resumes bit for bit."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gfcompile
from gfcompile.frontend.losses import resolve_loss
from gfcompile.report import read_report
from gfcompile.report.summary import summary_text
from gfcompile.runtime import tensorfile
from gfcompile.runtime.manifest import write_manifest
from gfcompile.verify.compare import Check, verify
from tests.end_to_end.conftest import random_batch
from tests.lean import lean_compile
from tests.selection import often
from tests.store import Store
from tests.tolerances import TRAINING_STEPS, assert_near, relative_error

STEPS, SHAPE = 20, (4, 3, 16, 16)
LOSS = "cross_entropy:label_smoothing=0.1"


class Net(nn.Module):
    """Three convolutions, one of them strided, and a classifier: 8 tensors to train."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one = nn.Conv2d(3, 8, 3, padding=1)
        self.two = nn.Conv2d(8, 8, 3, padding=1)
        self.three = nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.head = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        for conv in (self.one, self.two, self.three):
            x = conv(x).relu()
        return self.head(x.mean((2, 3)))


@dataclass(frozen=True)
class Case:
    """torch.optim's settings, and those of modules (`two`) or of parameters (`two.bias`) that differ."""

    kind: Callable[..., torch.optim.Optimizer]
    lr: float
    settings: dict[str, Any] = field(default_factory=dict)
    groups: dict[str, dict[str, Any]] = field(default_factory=dict)
    factors: dict[str, float] = field(default_factory=dict)
    clip: dict[str, float] = field(default_factory=dict)

    def torch(self, model: nn.Module) -> torch.optim.Optimizer:
        groups = []
        for name, parameter in model.named_parameters():
            module = name.partition(".")[0]
            own = {**self.settings, **self.groups.get(module, {}), **self.groups.get(name, {})}
            factor = self.factors.get(name, self.factors.get(module, 1.0))
            groups.append({"params": [parameter], "lr": self.lr * factor, **own})
        return self.kind(groups)

    def compiled(self, store: Store) -> Path:
        """Everything is trained, exactly."""
        groups = {name: dict(settings) for name, settings in self.groups.items()}
        for name, factor in self.factors.items():
            groups.setdefault(name, {})["lr_factor"] = factor
        optimizer = {"name": self.kind.__name__, **self.settings, "groups": groups, **self.clip}
        options: dict[str, Any] = {"loss": LOSS, "lr": self.lr, "optimizer": optimizer, "exact": True}
        return store.compiled(Net(), torch.zeros(SHAPE), f"{self.kind.__name__.lower()}_step", **options)


CASES = {
    "sgd": Case(
        torch.optim.SGD,
        0.05,
        {"momentum": 0.9, "weight_decay": 0.01},
        {
            "one": {"nesterov": True},
            "two": {"dampening": 0.3},
            "three": {"momentum": 0.0},
            "head.bias": {"maximize": True, "weight_decay": 0.0},
        },
        {"head": 0.5},
        {"clip_value": 0.02},
    ),
    "adam": Case(
        torch.optim.Adam,
        0.003,
        {"weight_decay": 0.01},
        {"one": {"amsgrad": True}, "two": {"betas": (0.7, 0.99), "eps": 1e-4}, "head.bias": {"maximize": True}},
        {"three": 0.3},
        {"clip_norm": 0.2},
    ),
    "adamw": Case(
        torch.optim.AdamW,
        0.003,
        {"weight_decay": 0.3},
        {"one.bias": {"weight_decay": 0.0}, "two": {"amsgrad": True, "betas": (0.5, 0.9)}},
        {"head": 0.3},
        {"clip_norm": 0.3, "clip_value": 0.05},
    ),
    "rmsprop": Case(
        torch.optim.RMSprop,
        0.001,
        {"alpha": 0.9, "weight_decay": 0.01},
        {
            "one": {"centered": True},
            "two": {"momentum": 0.5},
            "three": {"centered": True, "momentum": 0.5, "eps": 1e-3},
            "head.bias": {"maximize": True},
        },
    ),
}


def schedule(case: Case, index: int) -> float:
    return case.lr * 0.95**index


def clip(case: Case, model: nn.Module) -> float:
    """As torch.nn.utils does it; returns the norm before."""
    norm = nn.utils.clip_grad_norm_(model.parameters(), case.clip.get("clip_norm", float("inf")))
    if "clip_value" in case.clip:
        nn.utils.clip_grad_value_(model.parameters(), case.clip["clip_value"])
    return float(norm)


@pytest.fixture(scope="module", params=often(CASES, ["sgd", "adam"]))
def exact(request: pytest.FixtureRequest, store: Store) -> tuple[Case, Path]:
    case = CASES[request.param]
    return case, case.compiled(store)


@pytest.mark.slow
def test_follows_torch(exact: tuple[Case, Path]) -> None:
    """Losses and weights at every one of 20 steps, with a schedule of the learning rate; nothing else is trained."""
    case, out = exact
    model = Net()
    start = copy.deepcopy(model.state_dict())
    optimizer = case.torch(model)
    base = [group["lr"] / case.lr for group in optimizer.param_groups]
    loss_of = nn.CrossEntropyLoss(label_smoothing=0.1)
    with gfcompile.load(out) as step:
        for index in range(STEPS):
            rate = schedule(case, index)
            for group, factor in zip(optimizer.param_groups, base, strict=True):
                group["lr"] = rate * factor
            x, y = random_batch(SHAPE, index)
            optimizer.zero_grad()
            loss = loss_of(model(x), y)
            loss.backward()
            norm = clip(case, model)
            assert norm > 1.05 * case.clip.get("clip_norm", 0.0), "the limit never acts: lower it"
            optimizer.step()
            assert_near(step.train(x, y, lr=rate), loss.detach(), TRAINING_STEPS, f"loss of step {index}")
            found, expected = step.state_dict(), model.state_dict()
            for name in expected:
                assert_near(found[name], expected[name], TRAINING_STEPS, f"{name} after step {index}")
    moved = [relative_error(expected[name], start[name]) for name in expected]
    assert min(moved) > 100 * TRAINING_STEPS, "weights that stay where they are prove nothing"


def test_resumes_bit_for_bit(exact: tuple[Case, Path], tmp_path: Path) -> None:
    """5 steps, a checkpoint, 5 more in a new step: as 10 at once, all of the optimizer's state included."""
    _, out = exact
    batches = [random_batch(SHAPE, seed) for seed in range(10)]
    with gfcompile.load(out) as step:
        for x, y in batches[:5]:
            step.train(x, y)
        step.save_checkpoint(tmp_path / "five")
        losses = [step.train(x, y) for x, y in batches[5:]]
        step.save_checkpoint(tmp_path / "ten")
    with gfcompile.load(out) as step:
        step.load_checkpoint(tmp_path / "five")
        assert step.steps == 5
        assert [step.train(x, y) for x, y in batches[5:]] == losses
        step.save_checkpoint(tmp_path / "again")
    once, twice = (tensorfile.read(tmp_path / name).tensors for name in ("ten", "again"))
    assert once.keys() == twice.keys()
    assert all(np.array_equal(once[name], twice[name]) for name in once)
    state = {name for name in once if name.startswith("optimizer/")}
    assert state == {f"optimizer/{entry['name']}" for entry in step.manifest["state"] if entry["role"] == "optimizer"}
    if "optimizer/step" in once:
        assert once["optimizer/step"] == 10


def test_the_manifest_and_the_report_say_what_is_kept(exact: tuple[Case, Path]) -> None:
    case, out = exact
    with gfcompile.load(out) as step:
        optimizer, state = step.manifest["optimizer"], step.manifest["state"]
    kept = [entry for entry in state if entry["role"] == "optimizer"]
    assert optimizer["name"] == case.kind.__name__.lower()
    assert optimizer["state_bytes"] == 4 * sum(int(np.prod(entry["shape"])) for entry in kept) > 0
    assert {key: optimizer[key] for key in case.clip} == case.clip
    report = read_report(out)
    assert report.memory.totals.optimizer_state == optimizer["state_bytes"]
    assert f"; {optimizer['name']} (" in summary_text(report)
    assert "; optimizer state " in summary_text(report)


LIMIT = 0.05  # of the norm of filtered gradients


@pytest.fixture(scope="module")
def filtered(store: Store) -> Path:
    """Gradients are one value for all taps of a kernel; a torch.optim instance says how they are used."""
    model = Net()
    decayed = [p for name, p in model.named_parameters() if name.endswith("weight")]
    others = [p for name, p in model.named_parameters() if name.endswith("bias")]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.3}, {"params": others, "weight_decay": 0.0, "lr": 0.002}], lr=0.01
    )
    options: dict[str, Any] = {"layers": 3, "r": 2, "optimizer": optimizer, "clip_norm": LIMIT}
    loss = nn.CrossEntropyLoss(ignore_index=7)
    folder = store.compiled(model, torch.zeros(SHAPE), "filtered_step", loss=loss, **options)
    with gfcompile.load(folder) as step:
        assert step.filtered_layers == ["one", "two", "three"]
        assert step.lr == 0.01
    return folder


@pytest.mark.slow
def test_updates_from_its_own_filtered_gradients_follow_torch(filtered: Path) -> None:
    model = Net()
    groups = [
        {"params": [p], "lr": 0.01, "weight_decay": 0.3} if name.endswith("weight")
        else {"params": [p], "lr": 0.002, "weight_decay": 0.0}
        for name, p in model.named_parameters()
    ]  # fmt: skip
    optimizer = torch.optim.AdamW(groups)
    with gfcompile.load(filtered) as step:
        for index in range(5):
            x, y = random_batch(SHAPE, index)
            gradients = step.gradients(x, y)
            taps = gradients["two.weight"]
            assert np.ptp(taps, axis=(2, 3)).max() == 0 < np.abs(taps).max()
            for name, parameter in model.named_parameters():
                parameter.grad = torch.from_numpy(gradients[name])
            norm = nn.utils.clip_grad_norm_(model.parameters(), LIMIT)
            assert norm > 2 * LIMIT, "gradients() returned clipped gradients"
            optimizer.step()
            step.train(x, y)
            found = step.state_dict()
            for name, expected in model.state_dict().items():
                assert_near(found[name], expected, TRAINING_STEPS, f"{name} after step {index}")


@pytest.mark.slow
def test_verify_agrees(filtered: Path) -> None:
    checks = verify(Net(), resolve_loss("cross_entropy:ignore_index=7"), filtered)
    updates = [check for check in checks if check.what.startswith("update of")]
    assert {check.against for check in updates} == {"torch.optim"}
    assert len(updates) == 8
    assert all(check.passed for check in checks), [check for check in checks if not check.passed]


class Changing(nn.Module):
    """Changes what it is given, and returns numbers beside tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> dict[str, object]:
        x *= 2
        return {"out": self.conv(x).mean((2, 3)), "scale": 2, "nothing": None}


@pytest.mark.slow
def test_verify_gives_a_model_batches_of_its_own(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Changing().eval()
    lean_compile(model, torch.zeros(2, 3, 8, 8), layers=1, exact=True, out=tmp_path / "step").close()
    checks = verify(model, resolve_loss("cross_entropy"), tmp_path / "step")
    assert all(check.passed for check in checks), checks


def test_a_step_that_computes_no_number_passes_no_check() -> None:
    assert Check("loss", "eager", 1e-5, 1e-4).passed
    assert not Check("loss", "eager", float("nan"), 1e-4).passed


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [{"weight_decay": 0.2}, {"clip_norm": None, "eps": 0.1}], ids=str)
def test_verify_notices_another_optimizer(filtered: Path, tmp_path: Path, wrong: Mapping[str, Any]) -> None:
    changed = tmp_path / "changed_step"
    changed.mkdir()
    for path in filtered.iterdir():
        if path.name != "manifest.json":
            (changed / path.name).symlink_to(path)
    manifest = json.loads((filtered / "manifest.json").read_text())
    manifest["optimizer"].update(wrong)
    write_manifest(changed, manifest)
    checks = verify(Net(), resolve_loss("cross_entropy:ignore_index=7"), changed)
    failed = [check.what for check in checks if not check.passed]
    assert failed
    assert all(what.startswith("update of") for what in failed)
