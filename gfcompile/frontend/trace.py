"""From a module to graphs: the forward pass for prediction and planning, the joint training graph for the rest."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.export.experimental
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from gfcompile.errors import UserError
from gfcompile.frontend.foreign import one_line
from gfcompile.frontend.losses import Loss
from gfcompile.plan import Plan
from gfcompile.step import Role, Step, Value

INPUT_NAMES = (Value(Role.INPUT, "x"), Value(Role.TARGET, "target"), Value(Role.SAMPLE_WEIGHT, "sample_weight"))
_PREFIX = "model."


class _WithLoss(nn.Module):
    """loss(model(x), target), with the model's output beside it."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, x: Tensor, target: Tensor, sample_weight: Tensor) -> tuple[Tensor]:
        return (self.loss.apply(self.model(x), target, sample_weight),)


def working_copy(module: nn.Module) -> nn.Module:
    """The user's module stays as it is: everything below happens to a float32 CPU copy in eval mode."""
    odd = {str(p.dtype) for p in module.parameters() if p.dtype != torch.float32}
    if odd:
        raise UserError(f"model: parameters of type {', '.join(sorted(odd))}; convert it first with model.float()")
    duplicate = copy.deepcopy(module).cpu()
    return duplicate.eval() if not isinstance(duplicate, torch.fx.GraphModule) else duplicate


def run_once(module: nn.Module, x: Tensor) -> Any:
    """The model's output, or its own complaint as the user's error."""
    shape = "x".join(str(size) for size in x.shape)
    try:
        with torch.no_grad():
            return copy.deepcopy(module)(x)
    except Exception as error:  # the user's model may raise anything
        raise UserError(
            f"model: cannot run on one input of {shape} ({one_line(error)}); "
            "give a model with one image input, and its shape with --input"
        ) from error


def trace_forward(module: nn.Module, x: Tensor) -> ExportedProgram:
    """Inference graph in core ATen, batch norms using their running statistics."""
    try:
        with _quiet(), torch.no_grad():
            program = torch.export.export(module, (x,), strict=False)
            return program.run_decompositions()
    except RuntimeError as error:  # what torch.export raises for models it cannot follow
        raise UserError(
            f"model: torch.export cannot trace it ({one_line(error)}); remove Python branches that depend on values"
        ) from error


def forward_step(program: ExportedProgram, plan: Plan, updated_buffers: frozenset[str]) -> Step:
    """The prediction program as a step: outputs only. Buffers that training updates are not constants here either."""
    inputs = []
    for spec in program.graph_signature.input_specs:
        inputs.append(_state_value(spec.kind, spec.target) if spec.target is not None else INPUT_NAMES[0])
    kept: list[fx.Node] = []
    outputs: list[Value] = []
    for spec, node in zip(program.graph_signature.output_specs, program.graph.output_node().args[0], strict=True):
        if spec.kind is OutputKind.USER_OUTPUT:
            kept.append(node)
            outputs.append(Value(Role.OUTPUT, f"output{len(outputs)}" if outputs else "output"))
    body = program.graph_module
    body.graph.output_node().args = (tuple(kept),)
    return Step(body, inputs, outputs, plan, dict(_tensors(program)), updated_buffers)


def trace_training(module: nn.Module, x: Tensor, target: Tensor, loss: Loss, plan: Plan) -> Step:
    """The joint graph: forward, loss, and the gradients of the trained parameters; buffers that batch norm updates."""
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name in plan.trained_parameters)
    if plan.batchnorm == "train":
        for part in module.modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm):
                part.train()
    weights = torch.ones(x.shape[0])
    with _quiet():
        program = torch.export.export(_WithLoss(module, loss), (x, target, weights), strict=False)
        joint = torch.export.experimental._export_forward_backward(program)
    return _training_step(joint, plan)


def _training_step(joint: ExportedProgram, plan: Plan) -> Step:
    user_inputs = iter(INPUT_NAMES)
    inputs = []
    for spec in joint.graph_signature.input_specs:
        if spec.target is None:
            inputs.append(next(user_inputs))
        else:
            inputs.append(_state_value(spec.kind, spec.target.removeprefix(_PREFIX)))
    outputs = []
    for spec in joint.graph_signature.output_specs:
        name = (spec.target or "loss").removeprefix(_PREFIX)
        kinds = {
            OutputKind.LOSS_OUTPUT: Role.LOSS,
            OutputKind.GRADIENT_TO_PARAMETER: Role.GRADIENT,
            OutputKind.BUFFER_MUTATION: Role.BUFFER,
        }
        outputs.append(Value(kinds[spec.kind], name))
    tensors = {name.removeprefix(_PREFIX): tensor for name, tensor in _tensors(joint)}
    updated = frozenset(value.name for value in outputs if value.role is Role.BUFFER)
    return Step(joint.graph_module, inputs, outputs, plan, tensors, updated)


def _state_value(kind: InputKind, target: str) -> Value:
    roles = {
        InputKind.PARAMETER: Role.PARAMETER,
        InputKind.BUFFER: Role.BUFFER,
        InputKind.CONSTANT_TENSOR: Role.CONSTANT,
    }
    return Value(roles[kind], target)


def _tensors(program: ExportedProgram) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in {**program.constants, **program.state_dict}.items():
        if isinstance(tensor, Tensor):
            yield name, tensor.detach().clone()


@contextmanager
def _quiet() -> Iterator[None]:
    """torch.export warns about its own internals; the user can do nothing about it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
