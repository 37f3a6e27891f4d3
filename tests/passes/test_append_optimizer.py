"""append_optimizer: the graph's update is torch.optim's, for every setting, from any state."""

import pytest
import torch

from gfcompile.optimizers import SGD, Adam, AdamW, Optimizer, RMSprop
from gfcompile.passes import pipeline
from gfcompile.passes.append_optimizer import AppendOptimizer
from gfcompile.passes.canonicalize import Canonicalize
from gfcompile.step import Role, Step, Value
from tests.passes.handwritten import read
from tests.passes.tiny import (
    LR,
    arguments,
    assert_close,
    assert_golden,
    network_step,
    nodes,
    numbers,
    site_names,
)

gf = torch.ops.gf
COUNT = Value(Role.OPTIMIZER, "step")
TORCH = {SGD: torch.optim.SGD, Adam: torch.optim.Adam, AdamW: torch.optim.AdamW, RMSprop: torch.optim.RMSprop}
SETTINGS = [
    SGD(),
    SGD(weight_decay=0.1, maximize=True),
    SGD(momentum=0.9),
    SGD(momentum=0.9, weight_decay=0.1, lr_factor=0.5),
    SGD(momentum=0.9, weight_decay=0.1, nesterov=True),
    SGD(momentum=0.9, dampening=0.3),
    Adam(),
    Adam((0.5, 0.0), eps=0.1, weight_decay=0.1, maximize=True),
    Adam((0.8, 0.9), weight_decay=0.1, amsgrad=True, lr_factor=0.5),
    AdamW(),
    AdamW((0.8, 0.9), eps=0.1, weight_decay=0.3, amsgrad=True, lr_factor=0.5),
    RMSprop(),
    RMSprop(0.9, eps=0.1, weight_decay=0.1, maximize=True),
    RMSprop(momentum=0.9, weight_decay=0.1, lr_factor=0.5),
    RMSprop(centered=True, weight_decay=0.1),
    RMSprop(0.7, centered=True, momentum=0.9),
]
GOLDEN = {
    "plain": SGD(),
    "momentum": SGD(0.9, 1e-4, dampening=0.1),
    "adamw": AdamW(groups={"*.bias": {"weight_decay": 0.0, "betas": (0.8, 0.999)}}),
    "rmsprop": RMSprop(centered=True, momentum=0.9, maximize=True),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_updates_instead_of_returning_gradients(name):
    step = network_step(Canonicalize())
    assert_golden("append_optimizer.before", step)
    assert_golden(f"append_optimizer.{name}.after", AppendOptimizer(GOLDEN[name]).run(step))
    assert len(site_names(step)) == 4


@pytest.mark.parametrize("optimizer", SETTINGS, ids=str)
def test_equals_torch(optimizer):
    step = network_step(Canonicalize())
    assert_equals_torch(optimizer, step)


@pytest.mark.parametrize("optimizer", [SGD(0.9), AdamW(amsgrad=True), RMSprop(centered=True)], ids=str)
def test_one_value_for_all_taps(optimizer):
    """A filtered layer's gradient is read as the one value it is, and updates every tap."""
    step = network_step(*pipeline.FILTERING)
    assert_equals_torch(optimizer, step)
    shapes = [node.meta["val"].shape for node in gradients_read(step)]
    assert torch.Size([3, 2, 1, 1]) in shapes


def test_groups_have_their_own_settings():
    groups = {"conv": {"momentum": 0.5}, "*.bias": {"lr_factor": 0.1, "weight_decay": 0.0}}
    optimizer = SGD(0.0, 0.2, groups=groups)
    step = network_step(Canonicalize())
    assert_equals_torch(optimizer, step)
    assert {v.name for v in step.inputs if v.role is Role.OPTIMIZER} == {
        "momentum_buffer/conv.weight",
        "momentum_buffer/conv.bias",
    }


def assert_equals_torch(optimizer: Optimizer, step: Step) -> None:
    gradients = {value.name: tensor for value, tensor in numbers(step).items() if value.role is Role.GRADIENT}
    AppendOptimizer(optimizer).run(step)
    given = dict(zip(step.inputs, arguments(step, torch.float64), strict=True))
    updated = numbers(step)
    assert gradients.keys() == {value.name for value in updated if value.role is Role.PARAMETER} != set()
    assert Role.GRADIENT not in {value.role for value in updated}
    for name, gradient in gradients.items():
        settings = optimizer.of(name)
        state = {kind: given[Value(Role.OPTIMIZER, f"{kind}/{name}")] for kind in settings.state_names}
        weight, new_state = torch_update(
            settings, given[Value(Role.PARAMETER, name)], gradient, state, given.get(COUNT, torch.tensor(7.0))
        )
        assert_close(weight, updated[Value(Role.PARAMETER, name)], 1e-12, name)
        for kind, tensor in new_state.items():
            assert_close(tensor, updated[Value(Role.OPTIMIZER, f"{kind}/{name}")], 1e-12, f"{kind} of {name}")
    if COUNT in given:
        assert updated[COUNT] == given[COUNT] + 1


def torch_update(settings: Optimizer, weight, gradient, state, count):
    parameter = torch.nn.Parameter(weight.clone())
    parameter.grad = gradient.clone()
    own = {name: getattr(settings, name) for name in settings.own_settings()}
    optimizer = TORCH[type(settings)]([parameter], lr=LR * settings.lr_factor, foreach=False, **own)
    optimizer.state[parameter] = {"step": count.clone(), **{kind: tensor.clone() for kind, tensor in state.items()}}
    optimizer.step()
    return parameter.detach(), {kind: optimizer.state[parameter][kind] for kind in state}


def gradients_read(step: Step):
    for target, position in ((gf.sgd_update, 2), (gf.adam_update, 2), (gf.rmsprop_update, 2)):
        yield from (node.args[position] for node in nodes(step, target.default))


@pytest.mark.parametrize(
    ("optimizer", "kinds"),
    [
        (SGD(), set()),
        (SGD(momentum=0.5), {"momentum_buffer"}),
        (SGD(momentum=0.5, dampening=0.1), {"momentum_buffer", "step"}),
        (SGD(dampening=0.1), set()),
        (Adam(), {"exp_avg", "exp_avg_sq", "step"}),
        (AdamW(amsgrad=True), {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "step"}),
        (RMSprop(), {"square_avg"}),
        (RMSprop(centered=True), {"square_avg", "grad_avg"}),
        (RMSprop(momentum=0.5), {"square_avg", "momentum_buffer"}),
    ],
    ids=lambda value: "+".join(sorted(value)) if isinstance(value, set) else str(value),
)
def test_keeps_only_the_state_that_it_reads(optimizer, kinds):
    step = network_step(Canonicalize(), AppendOptimizer(optimizer))
    assert [value.role for value in step.inputs].count(Role.LR) == 1
    trained = step.plan.trained_parameters
    expected = {f"{kind}/{name}" for kind in kinds - {"step"} for name in trained} | kinds & {"step"}
    for values in (step.inputs, step.outputs):
        assert {value.name for value in values if value.role is Role.OPTIMIZER} == expected
    assert {value.name for value in step.outputs if value.role is Role.PARAMETER} == trained


def test_parameters_with_equal_settings_share_what_the_step_count_gives():
    step = network_step(Canonicalize(), AppendOptimizer(Adam(groups={"head": {"betas": (0.9, 0.5)}})))
    assert sorted(node.args[1] for node in nodes(step, gf.bias_correction.default)) == [0.5, 0.9, 0.999]


@pytest.mark.slow
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("optimizer", [SGD(momentum=0.9), AdamW()], ids=["sgd", "adamw"])
def test_updates_come_behind_every_reader_of_the_old_value(layers, optimizer):
    step = network_step(Canonicalize(), AppendOptimizer(optimizer), layers=layers)
    order = {node: index for index, node in enumerate(step.body.graph.nodes)}
    updates = [node for node in order if "_update" in str(node.target)]
    assert len(updates) == len(step.plan.trained_parameters)
    for update in updates:
        parameter = update.args[0]
        readers = [reader for reader in all_readers(parameter) if reader is not update]
        assert readers
        assert all(order[reader] < order[update] for reader in readers), parameter


def test_a_reader_after_the_gradient_comes_before_the_update():
    """As the traced order never has it, and a pass may."""
    step = read("""
        def step(
            w,  # parameter fc.weight float32[2, 2]
            v,  # parameter fc.other float32[2, 2]
            x,  # input x float32[2, 2]
        ):
            y = aten.mm(x, w)
            loss = aten.sum(y)
            gradient = aten.mm(x, x)
            late = aten.mul.Tensor(w, v)
            return (
                loss,  # loss loss
                gradient,  # gradient fc.weight
                late,  # gradient fc.other
            )
    """)
    names = [node.name for node in AppendOptimizer(SGD()).run(step).body.graph.nodes if node.op == "call_function"]
    assert names[:4] == ["y", "loss", "gradient", "late"]


def all_readers(parameter):
    """Direct readers, and those through a view such as the transposition of a linear layer's weight."""
    for user in parameter.users:
        yield user
        if user.target in (torch.ops.aten.permute.default, torch.ops.aten.reshape.default):
            yield from all_readers(user)
