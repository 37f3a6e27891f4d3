"""Put the optimizer into the graph, each update as soon as its gradient exists and the old value is read no more.

    return loss, grad(w)   ==>   w', v' = gf.sgd_update(w, v, grad(w), lr, ...) ; return loss, w', v'
    return loss, gf.spread_weights(g, channels)
      ==>  a, b = gf.sgd_update(gf.take_weights(w, channels), gf.take_weights(v, channels), g, lr, ...)
           return loss, gf.put_weights(w, a, channels), gf.put_weights(v, b, channels)

Exact: torch.optim's formulas. Only the state that a formula reads is kept; a step count is one tensor for all. A
gradient that is one value spread over a kernel's taps is read as that value. Of a weight of which channels are drawn,
only these are updated: the others keep value and state, without decay, as if the optimizer were given the drawn part.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import fx

from gfcompile.graph.inputs import Inputs
from gfcompile.graph.nodes import emit
from gfcompile.graph.shapes import shape_of
from gfcompile.ops import gf
from gfcompile.optimizers import SGD, Adam, AdamW, Optimizer, RMSprop
from gfcompile.passes.base import Found, Pass, Site
from gfcompile.passes.clip_gradients import drawn_value, spread_value
from gfcompile.step import Role, Step, Value

aten = torch.ops.aten
LR = Value(Role.LR, "lr")
STEP_COUNT = Value(Role.OPTIMIZER, "step")


@dataclass(frozen=True)
class Update(Site):
    """A gradient, its place among the outputs, and its parameter."""

    index: int
    name: str
    parameter: fx.Node


@dataclass(frozen=True)
class AppendOptimizer(Pass[Update]):
    """Every gradient output becomes the updated parameter, its state after it."""

    optimizer: Optimizer = field(default_factory=SGD)
    name: ClassVar[str] = "append_optimizer"

    def find(self, step: Step) -> Found[Update]:
        inputs = Inputs(step)
        for index, (value, node) in enumerate(zip(step.outputs, step.results(), strict=True)):
            if value.role is Role.GRADIENT:
                yield Update(node, index, value.name, inputs.node_of(Value(Role.PARAMETER, value.name)))

    def rewrite_all(self, step: Step, sites: list[Update]) -> None:
        """Together: the new outputs are put into the graph once."""
        outputs = _Outputs(step)
        for site in sites:
            self._append(outputs, site)
        step.body.graph.output_node().args = (tuple(outputs.results),)

    def _append(self, outputs: _Outputs, site: Update) -> None:
        step, inputs, parameter = outputs.step, outputs.inputs, site.parameter
        graph = step.body.graph
        settings = self.optimizer.of(site.name)
        values = [Value(Role.OPTIMIZER, f"{kind}/{site.name}") for kind in settings.state_names]
        lr = inputs.get(LR, ())
        state = [inputs.get(value, shape_of(parameter)) for value in values]
        count = outputs.next_count() if settings.counts_steps else None
        gradient = spread_value(drawn_value(site.node))
        is_drawn, draw = site.node.target is gf.spread_weights.default, site.node.args[1:]
        with graph.inserting_before(_last_reader(site.node, parameter).next):
            if settings.maximize:
                gradient = emit(graph, aten.neg.default, gradient)
            old = [parameter, *state]
            if is_drawn:
                old = [emit(graph, gf.take_weights.default, whole, *draw) for whole in old]
            update = _WRITERS[type(settings)](settings, _Operands(old[0], old[1:], gradient, lr, count))
            new = [emit(graph, operator.getitem, update, i) for i in range(1 + len(state))] if state else [update]
            if is_drawn:
                pairs = zip([parameter, *state], new, strict=True)
                new = [emit(graph, gf.put_weights.default, whole, part, *draw) for whole, part in pairs]
        outputs.results[site.index], step.outputs[site.index] = new[0], Value(Role.PARAMETER, site.name)
        outputs.results += new[1:]
        step.outputs += values


class _Outputs:
    """The step's results as they will be; `step.outputs` is kept in line."""

    def __init__(self, step: Step) -> None:
        self.step, self.inputs, self.results = step, Inputs(step), step.results()
        self.loss = step.loss()
        self.count = self.results[step.outputs.index(STEP_COUNT)] if STEP_COUNT in step.outputs else None

    def next_count(self) -> fx.Node:
        """How many steps there have been, this one included. Counted after the loss, so that nothing crosses it."""
        if self.count is None:
            graph, before = self.step.body.graph, self.inputs.get(STEP_COUNT, ())
            with graph.inserting_after(self.loss):
                self.count = emit(graph, aten.add.Tensor, before, 1.0)
            self.results.append(self.count)
            self.step.outputs.append(STEP_COUNT)
        return self.count


@dataclass(frozen=True)
class _Operands:
    """What an update reads; `count` is there for an optimizer that counts its steps."""

    parameter: fx.Node
    state: list[fx.Node]
    gradient: fx.Node
    lr: fx.Node
    count: fx.Node | None

    def emit(self, target: Any, *args: Any, **settings: Any) -> fx.Node:
        return emit(self.parameter.graph, target, *args, **settings)

    def of_count(self, target: Any, setting: float) -> fx.Node:
        """A scalar made of the step count: one node for all parameters that need the same."""
        assert self.count is not None
        for user in self.count.users:
            if user.target is target and user.args[1] == setting:
                return user
        with self.count.graph.inserting_after(self.count):
            return self.emit(target, self.count, setting)


def _write_sgd(settings: SGD, on: _Operands) -> fx.Node:
    common = {"weight_decay": settings.weight_decay, "lr_factor": settings.lr_factor}
    if not on.state:
        return on.emit(gf.sgd_update_plain.default, on.parameter, on.gradient, on.lr, **common)
    gain = on.of_count(gf.sgd_gain.default, settings.dampening) if settings.dampening else None
    own = {"momentum": settings.momentum, "nesterov": settings.nesterov}
    return on.emit(gf.sgd_update.default, on.parameter, *on.state, on.gradient, on.lr, gain, **own, **common)


def _write_adam(settings: Adam, on: _Operands) -> fx.Node:
    corrections = [on.of_count(gf.bias_correction.default, beta) for beta in settings.betas]
    return on.emit(
        gf.adam_update.default,
        on.parameter,
        on.state,
        on.gradient,
        on.lr,
        *corrections,
        beta1=settings.betas[0],
        beta2=settings.betas[1],
        eps=settings.eps,
        weight_decay=settings.weight_decay,
        decoupled=settings.is_decoupled,
        lr_factor=settings.lr_factor,
    )


def _write_rmsprop(settings: RMSprop, on: _Operands) -> fx.Node:
    return on.emit(
        gf.rmsprop_update.default,
        on.parameter,
        on.state,
        on.gradient,
        on.lr,
        alpha=settings.alpha,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
        momentum=settings.momentum,
        centered=settings.centered,
        lr_factor=settings.lr_factor,
    )


_WRITERS: dict[type[Optimizer], Callable[[Any, _Operands], fx.Node]] = {
    SGD: _write_sgd,
    Adam: _write_adam,
    AdamW: _write_adam,
    RMSprop: _write_rmsprop,
}


def _last_reader(gradient: fx.Node, parameter: fx.Node) -> fx.Node:
    """The later of the gradient's producer and the last node that reads the old parameter; views are read through."""
    found = {gradient, *parameter.users}
    waiting = list(found)
    while waiting:
        node = waiting.pop()
        if node.target in (aten.permute.default, aten.reshape.default):
            waiting += [user for user in node.users if user not in found]
            found.update(node.users)
    return max(node for node in found if node.op == "call_function" or node is gradient)  # in the graph's order
