"""The base class of passes: one `run` for all, frozen sites, shapes inferred again, a contract with a full text."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass
from typing import ClassVar

import pytest
import torch
from torch import fx, nn

from gfcompile.errors import ContractError
from gfcompile.graph.nodes import emit
from gfcompile.graph.shapes import shape_of
from gfcompile.ops import gf
from gfcompile.optimizers import Adam
from gfcompile.passes import contract, hoist, merge_equal, pipeline, winograd
from gfcompile.passes.base import Found, Pass, Site
from gfcompile.passes.hoist import Hoist, Mover
from gfcompile.passes.merge_equal import MergeEqual
from gfcompile.step import Step
from tests.passes import nets
from tests.passes.test_depth import DEPTH, deep
from tests.passes.tiny import applied, duplicate, filtered, network_step, nodes

aten = torch.ops.aten
OPTIMIZER = Adam(clip_norm=1.0)
PASSES = list(pipeline.passes_by_name().values())
REPLAY = "; replay it with: gfcompile run-pass change DUMP.txt, where --dump DIR writes the graph before it"


@dataclass(frozen=True)
class Change(Pass[Site]):
    """Does to the first relu what a test wants."""

    how: Callable[[Step, fx.Node], None]
    name: ClassVar[str] = "change"

    def find(self, step: Step) -> Found[Site]:
        yield Site(nodes(step, aten.relu.default)[0])

    def rewrite(self, step: Step, site: Site) -> None:
        self.how(step, site.node)


@pytest.mark.parametrize("rewrite", PASSES, ids=lambda rewrite: rewrite.name)
def test_a_pass_is_a_frozen_dataclass_in_a_file_of_its_name(rewrite: Pass) -> None:
    kind = type(rewrite)
    assert kind.__module__ == f"gfcompile.passes.{rewrite.name}"
    assert kind.__dataclass_params__.frozen
    assert "name" not in {each.name for each in dataclasses.fields(kind)}
    assert "run" not in vars(kind), "there is one run for all"
    assert {"rewrite", "rewrite_all"} & vars(kind).keys()


def test_sites_are_frozen() -> None:
    for kind in Site.__subclasses__():
        assert kind.__dataclass_params__.frozen, kind
    site = Site(nodes(network_step(), aten.relu.default)[0])
    assert site.label == "relu"
    with pytest.raises(FrozenInstanceError):
        site.node = site.node  # type: ignore[misc]


def test_a_wrong_shape_is_caught() -> None:
    def change(step: Step, node: fx.Node) -> None:
        with step.body.graph.inserting_after(node):
            new = step.body.graph.call_function(aten.neg.default, (node,))
        new.meta["val"] = node.meta["val"][:, :1]
        node.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)

    with pytest.raises(ContractError) as caught:
        Change(change).run(network_step())
    left = "'neg_default' recorded as float32[2, 1, 5, 5], and it is float32[2, 2, 5, 5]"
    assert str(caught.value) == f"pass 'change' left {left}{REPLAY}"


def test_a_wrong_shape_of_an_old_node_is_caught() -> None:
    def change(step: Step, node: fx.Node) -> None:
        node.meta["val"] = node.meta["val"][:, :1]

    with pytest.raises(ContractError, match=r"'relu' recorded as \w+\[2, 1, 5, 5\], and it is float32\[2, 2, 5, 5\]"):
        Change(change).run(network_step())


def test_a_wrong_type_is_caught() -> None:
    def change(step: Step, node: fx.Node) -> None:
        with step.body.graph.inserting_after(node):
            new = step.body.graph.call_function(aten.gt.Scalar, (node, 0))
        new.meta["val"] = node.meta["val"]

    with pytest.raises(
        ContractError, match=r"'gt_scalar' recorded as float32\[2, 2, 5, 5\], and it is bool\[2, 2, 5, 5\]"
    ):
        Change(change).run(network_step())


def test_arguments_changed_after_emit_are_caught() -> None:
    """What `emit` inferred holds for the arguments it was given, and for no others."""

    def change(step: Step, node: fx.Node) -> None:
        with step.body.graph.inserting_after(node):
            emit(step.body.graph, aten.sum.dim_IntList, node, [2]).args = (node, [2, 3])

    with pytest.raises(
        ContractError, match=r"'sum_dim_int_list' recorded as float32\[2, 2, 5\], and it is float32\[2, 2\]"
    ):
        Change(change).run(network_step())


def test_operands_that_do_not_fit_are_caught() -> None:
    def change(step: Step, node: fx.Node) -> None:
        (weight, *_) = (each for each in step.placeholders() if each.meta["val"].dim() == 4)
        reader = next(user for user in node.users if user.target is aten.convolution.default)
        reader.replace_input_with(node, weight)

    with pytest.raises(ContractError, match=r"^pass 'change' left 'convolution_1' with operands that do not fit \("):
        Change(change).run(network_step())


def test_a_signature_that_does_not_fit_is_caught() -> None:
    with pytest.raises(ContractError) as caught:
        Change(lambda step, _: step.inputs.pop()).run(network_step())
    assert str(caught.value) == f"pass 'change' left a graph that does not fit its signature{REPLAY}"


def test_a_shape_that_changed_is_passed_on_to_its_readers() -> None:
    """Nodes that were there are given the shapes they have now, and a new node without one its own."""

    def change(step: Step, node: fx.Node) -> None:
        graph = step.body.graph
        with graph.inserting_before(node):
            half = graph.call_function(aten.slice.Tensor, (node.args[0], 0, 0, 1))
        with graph.inserting_before(node.next):
            emit(graph, aten.neg.default, emit(graph, aten.neg.default, node))
        node.args = (half,)
        for user in [user for user in node.users if user.target is not aten.neg.default]:
            user.replace_input_with(node, node.args[0].args[0])

    step = Change(change).run(network_step())
    targets = (aten.slice.Tensor, aten.relu.default, aten.neg.default)
    changed = [node for target in targets for node in nodes(step, target)]
    assert [node.name for node in changed] == ["slice_tensor", "relu", "neg_default", "neg_default_1"]
    assert [shape_of(node) for node in changed] == [(1, 2, 5, 5)] * 4


def test_what_is_recorded_stays_where_it_agrees() -> None:
    """With the strides of the trace."""
    step = network_step()
    relu = nodes(step, aten.relu.default)[0]
    recorded = relu.meta["val"]

    def change(step: Step, node: fx.Node) -> None:
        with step.body.graph.inserting_before(node):
            node.args = (emit(step.body.graph, aten.clone.default, node.args[0]),)

    Change(change).run(step)
    assert relu.meta["val"] is recorded


def test_nothing_is_inferred_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """`emit` has inferred what passes make, and equal operands give equal shapes. Left are copies (hoist), and readers
    of a backward that gives other results than the one it replaces."""
    inferred: list[str] = []
    real = contract.infer
    monkeypatch.setattr(contract, "infer", lambda *call: inferred.append(str(call[1])) or real(*call))
    step = network_step()
    for rewrite in pipeline.training_passes(OPTIMIZER):
        inferred.clear()
        rewrite.run(step)
        assert not inferred or rewrite.name in ("hoist", "select", "draw_channels"), (rewrite.name, inferred)


def chain(depth: int) -> Step:
    parts = [part for _ in range(depth) for part in (nets.conv(), nn.BatchNorm2d(nets.WIDTH), nn.ReLU())]
    return filtered(nets.with_head(nets.conv(3), *parts), nets.SHAPE)


@pytest.mark.slow
def test_the_inputs_are_looked_up_as_often_in_a_deep_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """`Step.placeholders` walks over all of them: once a site would be quadratic."""
    looks: list[int] = []
    real = Step.placeholders
    monkeypatch.setattr(Step, "placeholders", lambda step: looks.append(1) or real(step))

    def count(depth: int) -> dict[str, int]:
        step, counts = chain(depth), {}
        for index, rewrite in enumerate(pipeline.training_passes(OPTIMIZER)):
            looks.clear()
            rewrite.run(step)
            counts[f"{index} {rewrite.name}"] = len(looks)
        return counts

    assert count(1) == count(4)


def test_equal_nodes_are_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    step = network_step(*pipeline.FILTERING[:6])
    graph = step.body.graph
    source = next(node for node in reversed(graph.nodes) if node.target is gf.patch_mean.default)
    with graph.inserting_before(graph.output_node()):
        for _ in range(20):
            emit(graph, aten.neg.default, source)
    keys: list[str] = []
    real = merge_equal._key
    monkeypatch.setattr(merge_equal, "_key", lambda *args: keys.append("") or real(*args))
    behind = sum(1 for _ in merge_equal._behind_the_loss(step))
    assert len(MergeEqual().run(step).log[-1].sites) == 19
    assert len(keys) == behind


@pytest.mark.slow
def test_work_that_statistics_share_is_moved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = deep()
    graph, tower = made.step.body.graph, made.statistic.args[0]
    with graph.inserting_after(made.statistic):
        others = [graph.node_copy(made.statistic) for _ in range(5)]
    for factor, other in enumerate(others, 2):  # each of a map of its own, made of the shared tower
        with graph.inserting_before(other):
            other.args = (emit(graph, aten.mul.Scalar, tower, factor), *other.args[1:])
    seen: list[fx.Node] = []
    real = Mover._known
    monkeypatch.setattr(hoist.Mover, "_known", lambda self, node: seen.append(node) or real(self, node))
    assert len(Hoist().run(made.step).log[-1].sites) == 6
    assert len(seen) == len(set(seen)) <= DEPTH + 2 * 6


def test_open_convolutions_are_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    real = winograd.find_open
    monkeypatch.setattr(winograd, "find_open", lambda step: looks.append(1) or real(step))
    wide = nn.Sequential(*(nn.Conv2d(8, 8, 3, padding=1) for _ in range(4)))
    step = filtered(nets.with_head(nn.Conv2d(3, 8, 1), *wide), nets.SHAPE)
    step = applied(duplicate(step), *pipeline.gradient_passes(winograd=None), winograd.Winograd(lambda _: 2))
    assert len(step.log[-1].sites) >= 4
    assert len(looks) == 1
