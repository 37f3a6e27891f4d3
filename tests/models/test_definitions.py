"""The definitions themselves: they run, repeat, trace, and a loss reaches their last convolutions."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.utils._pytree import tree_leaves

from gfcompile.errors import UserError
from gfcompile.frontend.exported.operators import find_operator, is_ignored
from gfcompile.frontend.load import load_model
from tests.models.definitions import DEFINITIONS, THEMES, Definition
from tests.selection import often


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """The networks are tiny: more threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# torch.save itself refuses parametrisations and local functions
UNSAVABLE = (
    "weight_norm", "spectral_norm", "moment_pooling", "mixed_pooling", "global_max_pooling", "log_sum_exp_pooling",
)  # fmt: skip
HOOKED = "weight_norm_hook"
FIRST = [theme.DEFINITIONS[0] for theme in THEMES]
each_definition = pytest.mark.parametrize("definition", DEFINITIONS.values(), ids=DEFINITIONS)


@pytest.mark.coverage
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


@pytest.mark.slow
@pytest.mark.parametrize("definition", often(DEFINITIONS.values(), FIRST), ids=DEFINITIONS)
def test_traces(definition: Definition) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(definition.make(), definition.example(), strict=False)
    graphs = [part.graph for part in program.graph_module.modules() if isinstance(part, torch.fx.GraphModule)]
    calls = [node.target for graph in graphs for node in graph.nodes if isinstance(node.target, torch._ops.OpOverload)]
    for name in {f"torch.ops.{target}" for target in calls}:  # so that its .pt2 file can be read
        assert is_ignored(name) or find_operator(name), name


@pytest.mark.slow
@each_definition
def test_loads_when_saved(definition: Definition, tmp_path: Path) -> None:
    """As torch.save writes it, its classes named as a user would name a package of theirs."""
    model, example = definition.make(), definition.example()
    if definition.name in UNSAVABLE:
        with pytest.raises((RuntimeError, AttributeError)):
            torch.save(model, tmp_path / "model.pt")
        return
    torch.save(model, tmp_path / "model.pt")
    if definition.name == HOOKED:  # a hook is code
        with pytest.raises(UserError, match=r"holds 'torch\.nn\.utils\.weight_norm\.WeightNorm', which is neither"):
            load_model(str(tmp_path / "model.pt"), imports=["tests.models"])
        return
    loaded = load_model(str(tmp_path / "model.pt"), imports=["tests.models"]).module
    with torch.no_grad():
        for ours, theirs in zip(tree_leaves(loaded(*example)), tree_leaves(model(*example)), strict=True):
            assert torch.equal(ours, theirs)


@pytest.mark.coverage
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
