"""Batch norm policies, for all or by pattern, against torch.nn and torch.optim over 20 steps."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.lean import lean_compile
from tests.models import initialise, randomise_statistics
from tests.selection import often
from tests.tolerances import assert_near

STEPS, LR, TOLERANCE = 20, 0.02, 1e-4  # losses and state, float32 on both sides; measured 4e-7 over the 20 steps
SHAPE = (8, 3, 12, 12)
POLICIES = {
    "eval": "eval",
    "train": "train",
    "frozen": "frozen",
    "by pattern": {"*": "eval", "second.*": "train", "third.*": "frozen"},
}


def build() -> nn.Module:
    def block(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.Tanh())

    net = nn.Sequential()
    for name, part in (("first", block(3, 6)), ("second", block(6, 8)), ("third", block(8, 8))):
        net.add_module(name, part)
    net.add_module("pool", nn.AdaptiveAvgPool2d(1))
    net.add_module("flat", nn.Flatten())
    net.add_module("head", nn.Linear(8, 4))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        initialise(net)
    return randomise_statistics(net, seed=0).eval()


def batch(number: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(SHAPE, generator=generator), torch.randint(0, 4, SHAPE[:1], generator=generator)


def mode_of(policy: str | dict[str, str], name: str) -> str:
    if isinstance(policy, str):
        return policy
    return policy.get(f"{name.partition('.')[0]}.*", policy["*"])


@pytest.mark.slow
@pytest.mark.parametrize("policy", often(POLICIES, ["train", "by pattern"]))  # which has all three
def test_twenty_steps_equal_pytorch(policy, tmp_path):
    model, modes = build(), POLICIES[policy]
    step = lean_compile(
        model,
        batch(0)[0],
        layers=3,
        exact=True,
        train="*",
        batchnorm=modes,
        lr=LR,
        momentum=0.9,
        out=tmp_path / "bn_step",
    )
    peer = copy.deepcopy(model)
    for name, part in peer.named_modules():
        if isinstance(part, nn.BatchNorm2d):
            part.train(mode_of(modes, name) == "train")
            part.requires_grad_(mode_of(modes, name) != "frozen")
    trained = {name: value for name, value in peer.named_parameters() if value.requires_grad}
    assert set(step.manifest["gradients"]) == set(trained)
    optimizer = torch.optim.SGD(trained.values(), lr=LR, momentum=0.9)
    for number in range(STEPS):
        x, y = batch(number)
        optimizer.zero_grad()
        loss = F.cross_entropy(peer(x), y)
        loss.backward()
        optimizer.step()
        assert_near(step.train(x, y), loss.item(), TOLERANCE, f"loss of step {number}")
    state = step.state_dict()
    for name, wanted in peer.state_dict().items():
        assert_near(state[name], wanted, TOLERANCE, name)
