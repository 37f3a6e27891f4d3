"""append_optimizer: the graph's update is torch.optim.SGD's."""

import pytest
import torch

from gfcompile.optimizers import SGD
from gfcompile.passes.append_optimizer import AppendOptimizer
from gfcompile.passes.canonicalize import Canonicalize
from gfcompile.step import Role, Step, Value
from tests.passes.tiny import (
    LR,
    arguments,
    assert_close,
    assert_golden,
    assert_second_run_changes_nothing,
    network_step,
    numbers,
    site_names,
)

SETTINGS = [SGD(), SGD(weight_decay=0.1), SGD(momentum=0.9), SGD(momentum=0.9, weight_decay=0.1)]


@pytest.mark.parametrize(("name", "optimizer"), [("plain", SGD()), ("momentum", SGD(0.9, 1e-4))])
def test_updates_instead_of_returning_gradients(name, optimizer):
    step = network_step(Canonicalize())
    assert_golden("append_optimizer.before", step)
    assert_golden(f"append_optimizer.{name}.after", AppendOptimizer(optimizer).run(step))
    assert len(site_names(step)) == 4


@pytest.mark.parametrize("optimizer", SETTINGS, ids=str)
def test_equals_torch_sgd(optimizer):
    step = network_step(Canonicalize())
    gradients = {value.name: tensor for value, tensor in numbers(step).items() if value.role is Role.GRADIENT}
    AppendOptimizer(optimizer).run(step)
    given = dict(zip(step.inputs, arguments(step, torch.float64), strict=True))
    updated = numbers(step)
    assert gradients.keys() == {value.name for value in updated if value.role is Role.PARAMETER}
    for name, gradient in gradients.items():
        momentum = given.get(Value(Role.MOMENTUM, name))
        weight, velocity = torch_sgd(optimizer, given[Value(Role.PARAMETER, name)], gradient, momentum)
        assert_close(weight, updated[Value(Role.PARAMETER, name)], 1e-14, name)
        if optimizer.momentum:
            assert_close(velocity, updated[Value(Role.MOMENTUM, name)], 1e-14, name)


def torch_sgd(optimizer: SGD, weight: torch.Tensor, gradient: torch.Tensor, momentum: torch.Tensor | None):
    parameter = torch.nn.Parameter(weight.clone())
    parameter.grad = gradient.clone()
    sgd = torch.optim.SGD([parameter], lr=LR, momentum=optimizer.momentum, weight_decay=optimizer.weight_decay)
    if momentum is not None:
        sgd.state[parameter]["momentum_buffer"] = momentum.clone()
    sgd.step()
    return parameter.detach(), sgd.state[parameter].get("momentum_buffer")


def test_signature_without_momentum():
    step = network_step(Canonicalize(), AppendOptimizer(SGD()))
    assert [value.role for value in step.inputs].count(Role.LR) == 1
    assert Role.MOMENTUM not in {value.role for value in (*step.inputs, *step.outputs)}
    assert Role.GRADIENT not in {value.role for value in step.outputs}


def test_signature_with_momentum():
    step = network_step(Canonicalize(), AppendOptimizer(SGD(momentum=0.5)))
    trained = {value.name for value in step.outputs if value.role is Role.PARAMETER}
    assert trained == step.plan.trained_parameters
    assert {value.name for value in step.inputs if value.role is Role.MOMENTUM} == trained
    assert {value.name for value in step.outputs if value.role is Role.MOMENTUM} == trained


@pytest.mark.parametrize("layers", [1, 2])
def test_updates_come_behind_every_reader_of_the_old_value(layers):
    step = network_step(Canonicalize(), AppendOptimizer(SGD(momentum=0.9)), layers=layers)
    order = {node: index for index, node in enumerate(step.body.graph.nodes)}
    for update in (node for node in order if "sgd_update" in str(node.target)):
        parameter = update.args[0]
        readers = [reader for reader in all_readers(parameter) if reader is not update]
        assert readers
        assert all(order[reader] < order[update] for reader in readers), parameter


def all_readers(parameter):
    """Direct readers, and those through a view such as the transposition of a linear layer's weight."""
    for user in parameter.users:
        yield user
        if user.target in (torch.ops.aten.permute.default, torch.ops.aten.view.default):
            yield from all_readers(user)


def test_second_run_finds_no_gradient():
    """Not applicable a second time: there is no gradient output left to turn into an update."""
    optimizer = AppendOptimizer(SGD(momentum=0.9))
    step: Step = network_step(Canonicalize(), optimizer)
    assert_second_run_changes_nothing(optimizer, step)
