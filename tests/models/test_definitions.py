"""The definitions themselves: they run, repeat, trace, and a loss reaches their last convolutions."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.utils._pytree import tree_leaves

from tests.models.definitions import DEFINITIONS, THEMES, Definition


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """The networks are tiny: more threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


each_definition = pytest.mark.parametrize("definition", DEFINITIONS.values(), ids=DEFINITIONS)


@each_definition
def test_runs_the_same_twice(definition: Definition) -> None:
    with torch.no_grad():
        first, second = (tree_leaves(definition.make()(*definition.example())) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not definition.make().training
    for output in first:
        assert output.shape[0] == definition.inputs[0][0]
        assert output.isfinite().all()
        assert 0.01 < output.std() < 20, f"outputs of size {output.std():.1e}"


@each_definition
def test_traces(definition: Definition) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.export(definition.make(), definition.example(), strict=False)


@each_definition
def test_a_loss_reaches_the_last_convolutions(definition: Definition) -> None:
    model = definition.make()
    convolutions, outputs = _run_in_order(model, definition.example())
    assert len(convolutions) > definition.layers, "nothing would stay frozen"
    total = sum(_loss(definition.loss, output) for output in tree_leaves(outputs))
    total.backward()
    for name in convolutions[-definition.layers :]:
        for part, parameter in model.get_submodule(name).named_parameters():
            assert parameter.grad is not None, f"{name}.{part}"
            assert parameter.grad.isfinite().all(), f"{name}.{part}"
            assert parameter.grad.norm() > 1e-5, f"{name}.{part}: {parameter.grad.norm():.1e}"


def test_every_idiom_is_named_once() -> None:
    idioms = [definition.idiom for definition in DEFINITIONS.values()]
    assert all(idiom and "\n" not in idiom for idiom in idioms)
    assert len(set(idioms)) == len(idioms)
    assert len(DEFINITIONS) == sum(len(theme.DEFINITIONS) for theme in THEMES), "a name occurs twice"


def _run_in_order(model: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[list[str], Any]:
    """The convolutions that ran, each once, in the order of their first run; and the outputs."""
    ran: dict[str, None] = {}
    for name, module in model.named_modules():
        if isinstance(module, _ConvNd):
            module.register_forward_hook(lambda *_, name=name: ran.setdefault(name))
    outputs = model(*inputs)
    return list(ran), outputs


def _loss(name: str, output: Tensor) -> Tensor:
    if name == "mse":
        return F.mse_loss(output, torch.ones_like(output))
    classes = torch.arange(output.numel() // output.shape[1]) % output.shape[1]
    return F.cross_entropy(output, classes.reshape(output.shape[0], *output.shape[2:]))
