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
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import fx

from gfcompile.graph.nodes import emit, input_of
from gfcompile.graph.shapes import shape_of
from gfcompile.ops import gf
from gfcompile.optimizers import SGD, Adam, AdamW, Optimizer, RMSprop
from gfcompile.passes.base import Found, Pass
from gfcompile.passes.clip_gradients import drawn_value, spread_value
from gfcompile.step import Role, Step, Value

aten = torch.ops.aten
LR = Value(Role.LR, "lr")
STEP_COUNT = Value(Role.OPTIMIZER, "step")


@dataclass(frozen=True)
class AppendOptimizer(Pass):
    """Every gradient output becomes the updated parameter, its state behind it."""

    optimizer: Optimizer
    name: ClassVar[str] = "append_optimizer"

    def find(self, step: Step) -> Found:
        for value, node in zip(step.outputs, step.results(), strict=True):
            if value.role is Role.GRADIENT:
                yield node

    def rewrite(self, step: Step, site: fx.Node) -> None:
        graph = step.body.graph
        index = next(
            i
            for i, (v, n) in enumerate(zip(step.outputs, step.results(), strict=True))
            if n is site and v.role is Role.GRADIENT
        )
        name = step.outputs[index].name
        settings = self.optimizer.of(name)
        values = [Value(Role.OPTIMIZER, f"{kind}/{name}") for kind in settings.state_names]
        parameter = step.placeholder(Role.PARAMETER, name)
        lr = input_of(step, LR, ())
        state = [input_of(step, value, shape_of(parameter)) for value in values]
        count = _next_count(step) if settings.counts_steps else None
        gradient = spread_value(drawn_value(site))
        with graph.inserting_before(_last_reader(site, parameter).next):
            if settings.maximize:
                gradient = emit(graph, aten.neg.default, gradient)
            old = [parameter, *state]
            if site.target is gf.spread_weights.default:
                old = [emit(graph, gf.take_weights.default, whole, *site.args[1:]) for whole in old]
            update = _WRITERS[type(settings)](settings, _Operands(old[0], old[1:], gradient, lr, count))
            new = [emit(graph, operator.getitem, update, i) for i in range(1 + len(state))] if state else [update]
            if site.target is gf.spread_weights.default:
                pairs = zip([parameter, *state], new, strict=True)
                new = [emit(graph, gf.put_weights.default, whole, part, *site.args[1:]) for whole, part in pairs]
        results = step.results()
        results[index], step.outputs[index] = new[0], Value(Role.PARAMETER, name)
        step.outputs += values
        graph.output_node().args = ((*results, *new[1:]),)


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


def _next_count(step: Step) -> fx.Node:
    """How many steps there have been, this one included. Counted behind the loss, so that nothing crosses it."""
    if STEP_COUNT in step.outputs:
        return step.results()[step.outputs.index(STEP_COUNT)]
    graph, before = step.body.graph, input_of(step, STEP_COUNT, ())
    with graph.inserting_after(step.loss()):
        count = emit(graph, aten.add.Tensor, before, 1.0)
    graph.output_node().args = ((*step.results(), count),)
    step.outputs.append(STEP_COUNT)
    return count


def _last_reader(gradient: fx.Node, parameter: fx.Node) -> fx.Node:
    """The later of the gradient's producer and the last node that reads the old parameter, views included."""
    readers = {parameter}
    last = gradient
    for node in gradient.graph.nodes:
        if node is gradient or (node.op == "call_function" and readers & set(node.all_input_nodes)):
            last = node
            if node.target in (aten.permute.default, aten.reshape.default):
                readers.add(node)
    return last
