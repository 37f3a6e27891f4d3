"""Put the optimizer into the graph, each update as soon as its gradient exists and the old value is read no more.

    return loss, grad(w)   ==>   w', v' = gf.sgd_update(w, v, grad(w), lr) ; return loss, w', v'

Exact: torch.optim.SGD's formula. Without momentum there is no v. A gradient that is one value spread over a kernel's
taps is read as that value.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import fx

from gfcompile.ops import gf
from gfcompile.optimizers import SGD
from gfcompile.passes.base import Found, Pass, emit, fake_like, shape_of
from gfcompile.step import Role, Step, Value


@dataclass(frozen=True)
class AppendOptimizer(Pass):
    """Every gradient output becomes the updated parameter (and its momentum)."""

    optimizer: SGD
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
        parameter = step.placeholder(Role.PARAMETER, name)
        lr = self._input(step, Value(Role.LR, "lr"), ())
        results = step.results()
        gradient = site.args[0] if site.target is torch.ops.aten.expand.default else site
        with graph.inserting_after(_last_reader(site, parameter)):
            if self.optimizer.momentum == 0:
                update = emit(graph, gf.sgd_update_plain.default, parameter, gradient, lr, self.optimizer.weight_decay)
                results[index] = update
            else:
                velocity = self._input(step, Value(Role.MOMENTUM, name), shape_of(parameter))
                settings = (self.optimizer.momentum, self.optimizer.weight_decay)
                update = emit(graph, gf.sgd_update.default, parameter, velocity, gradient, lr, *settings)
                with graph.inserting_after(update):
                    new_velocity = emit(graph, operator.getitem, update, 1)
                    new_parameter = emit(graph, operator.getitem, update, 0)
                results[index] = new_parameter
                results.append(new_velocity)
                step.outputs.append(Value(Role.MOMENTUM, name))
        step.outputs[index] = Value(Role.PARAMETER, name)
        graph.output_node().args = (tuple(results),)

    @staticmethod
    def _input(step: Step, value: Value, shape: tuple[int, ...]) -> fx.Node:
        if value in step.inputs:
            return step.placeholder(value.role, value.name)
        graph = step.body.graph
        with graph.inserting_after(step.placeholders()[-1]):
            node = graph.placeholder(f"{value.role}_{value.name.replace('.', '_')}")
        node.meta["val"] = fake_like(graph, shape, torch.float32)
        step.inputs.append(value)
        return node


def _last_reader(gradient: fx.Node, parameter: fx.Node) -> fx.Node:
    """The later of the gradient's producer and the last node that reads the old parameter, views included."""
    readers = {parameter}
    last = gradient
    for node in gradient.graph.nodes:
        if node is gradient or (node.op == "call_function" and readers & set(node.all_input_nodes)):
            last = node
            if node.target in (torch.ops.aten.permute.default, torch.ops.aten.view.default):
                readers.add(node)
    return last
