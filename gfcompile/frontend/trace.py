"""From a module to graphs: the forward pass for prediction and planning, the joint training graph for the rest."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from gfcompile.errors import UserError
from gfcompile.frontend.dialect import ASSERTIONS, speak_dialect
from gfcompile.frontend.differentiate import CoreProgram, differentiate, flatten
from gfcompile.frontend.foreign import one_line
from gfcompile.frontend.losses import Loss
from gfcompile.plan import Plan
from gfcompile.settings.words import option
from gfcompile.step import Body, Role, Step, Value

TARGET, SAMPLE_WEIGHT = Value(Role.TARGET, "target"), Value(Role.SAMPLE_WEIGHT, "sample_weight")
SEED = Value(Role.SEED, "seed")
_PREFIX = "model."
_NORMS = (nn.modules.batchnorm._NormBase,)

Inputs = tuple[Tensor, ...]


def input_values(inputs: Inputs) -> list[Value]:
    """What the model's inputs are called: `x`, or `x0`, `x1`, ... where there are several."""
    names = ["x"] if len(inputs) == 1 else [f"x{index}" for index in range(len(inputs))]
    return [Value(Role.INPUT, name) for name in names]


class _WithLoss(nn.Module):
    """loss(model(*inputs), target). The seed is here for the random numbers that `speak_dialect` writes."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, inputs: Inputs, target: Tensor, sample_weight: Tensor, seed: Tensor) -> tuple[Tensor]:
        return (self.loss.apply(self.model(*inputs), target, sample_weight),)


def working_copy(module: nn.Module) -> nn.Module:
    """The user's module stays as it is: everything below happens to a float32 CPU copy in eval mode."""
    odd = {str(p.dtype) for p in module.parameters() if p.dtype != torch.float32}
    if odd:
        raise UserError(f"model: parameters of type {', '.join(sorted(odd))}; convert it first with model.float()")
    try:
        duplicate = copy.deepcopy(module).cpu()
    except RecursionError as error:
        raise UserError("model: its modules are nested too deeply to be copied; build it with fewer levels") from error
    return duplicate.eval() if not isinstance(duplicate, torch.fx.GraphModule) else duplicate


def run_once(module: nn.Module, inputs: Inputs) -> Any:
    """The model's output, or its own complaint as the user's error.

    Before anything is traced: a trace on shapes lets pass what PyTorch cannot compute, and what a model keeps outside
    itself (tables in a cache of its module) would be kept without values.
    """
    shapes = " and ".join("x".join(str(size) for size in x.shape) for x in inputs)
    try:
        with torch.no_grad():
            return copy.deepcopy(module)(*inputs)
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # the user's model may raise anything
        raise UserError(
            f"model: cannot run on an input of {shapes} ({one_line(error)}); give the shape that it takes with"
            f" {option('input')}"
        ) from error


def trace_forward(module: nn.Module, inputs: Inputs) -> CoreProgram:
    """Inference graph in core ATen, batch norms using their running statistics."""
    with _tracing(), torch.no_grad():
        program = torch.export.export(module, inputs, strict=False)
        speak_dialect(program.graph_module)
        return flatten(program)


def forward_step(program: CoreProgram, plan: Plan, inputs: Inputs, updated_buffers: frozenset[str]) -> Step:
    """The prediction program as a step: outputs only. Buffers that training updates are not constants here either."""
    doors = iter(input_values(inputs))
    signature = [
        _state_value(spec.kind, spec.target) if spec.target is not None else next(doors)
        for spec in program.signature.input_specs
    ]
    kept: list[fx.Node] = []
    outputs: list[Value] = []
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()  # the program is that of other plans' steps too
    graph.graph_copy(program.graph, copies)
    for spec, node in zip(program.signature.output_specs, program.graph.output_node().args[0], strict=True):
        if spec.kind is OutputKind.USER_OUTPUT and isinstance(node, fx.Node):
            kept.append(copies[node])
            outputs.append(Value(Role.OUTPUT, f"output{len(outputs)}" if outputs else "output"))
    graph.output(tuple(kept))
    body = Body(program.body, graph)
    _settle(body)
    return Step(body, signature, outputs, plan, dict(program.tensors), updated_buffers)


def trace_training(module: nn.Module, inputs: Inputs, target: Tensor, loss: Loss, plan: Plan) -> Step:
    """The joint graph: forward, loss, and the gradients of the trained parameters; buffers that the step updates."""
    named = list(module.named_parameters(remove_duplicate=False))
    trained = {parameter for name, parameter in named if name in plan.trained_parameters}
    for _, parameter in named:
        parameter.requires_grad_(parameter in trained)
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            part.train(plan.batchnorm_of(name) == "train")
        elif plan.dropout and draws_random_numbers(part):
            part.training = True
    arguments = (inputs, target, torch.ones(inputs[0].shape[0]), torch.zeros((), dtype=torch.int64))
    with _tracing():
        program = torch.export.export(_WithLoss(module, loss), arguments, strict=False)
        speak_dialect(program.graph_module, _seed_of(program))
        _freeze_unread(program)
        joint = differentiate(program)
    return _training_step(joint, plan, [*input_values(inputs), TARGET, SAMPLE_WEIGHT, SEED])


def output_keys(output: Any) -> list[str] | None:
    """The keys of a model's output that is a dictionary of tensors."""
    if isinstance(output, Mapping) and all(isinstance(part, Tensor) for part in output.values()):
        return [str(key) for key in output]
    return None


def draws_random_numbers(module: nn.Module) -> bool:
    """Dropouts of any origin: modules without tensors of their own, or with a rate that says so (`drop_rate`)."""
    is_leaf = next(module.children(), None) is None and not module._parameters and not module._buffers
    has_rate = any(
        name.startswith("drop") and isinstance(rate, float) and rate > 0 for name, rate in vars(module).items()
    )
    return not isinstance(module, _NORMS) and (is_leaf or has_rate)


def _freeze_unread(program: ExportedProgram) -> None:
    """A shared parameter is read by one of its names; the tracer would want a gradient for the others too."""
    for node in program.graph.nodes:
        if node.op == "placeholder" and not node.users and node.meta["val"].requires_grad:
            with node.meta["val"].fake_mode:
                node.meta["val"] = torch.empty_like(node.meta["val"], requires_grad=False)


def _seed_of(program: ExportedProgram) -> fx.Node:
    *_, seed = program.graph_signature.user_inputs
    return next(node for node in program.graph.nodes if node.name == seed)


def _training_step(joint: CoreProgram, plan: Plan, doors: list[Value]) -> Step:
    user_inputs = iter(doors)
    inputs = []
    for spec in joint.signature.input_specs:
        if spec.target is None:
            inputs.append(next(user_inputs))
        else:
            inputs.append(_state_value(spec.kind, spec.target.removeprefix(_PREFIX)))
    outputs = []
    for spec in joint.signature.output_specs:
        name = (spec.target or "loss").removeprefix(_PREFIX)
        kinds = {
            OutputKind.LOSS_OUTPUT: Role.LOSS,
            OutputKind.GRADIENT_TO_PARAMETER: Role.GRADIENT,
            OutputKind.BUFFER_MUTATION: Role.BUFFER,
        }
        outputs.append(Value(kinds[spec.kind], name))
    _drop_unused_seed(joint.body, inputs)
    _name_doors(joint.body, inputs)
    _settle(joint.body)
    tensors = {name.removeprefix(_PREFIX): tensor for name, tensor in joint.tensors.items()}
    updated = frozenset(value.name for value in outputs if value.role is Role.BUFFER)
    return Step(joint.body, inputs, outputs, plan, tensors, updated)


def _settle(body: Body) -> None:
    """Assertions go; views become reshapes, since passes may change how the memory under them lies."""
    for node in list(body.graph.nodes):
        if node.target in ASSERTIONS:
            body.graph.erase_node(node)
        elif node.target is torch.ops.aten.view.default:
            node.target = torch.ops.aten.reshape.default


def _name_doors(body: Body, inputs: list[Value]) -> None:
    """The tracer calls the model's inputs by their place in a tuple."""
    placeholders = [node for node in body.graph.nodes if node.op == "placeholder"]
    for node, value in zip(placeholders, inputs, strict=True):
        if value.role is Role.INPUT:
            node._rename(value.name)
            node.target = node.name


def _drop_unused_seed(body: Body, inputs: list[Value]) -> None:
    *_, seed = (node for node in body.graph.nodes if node.op == "placeholder")
    if not seed.users:
        body.graph.erase_node(seed)
        inputs.pop()


def _state_value(kind: InputKind, target: str) -> Value:
    roles = {
        InputKind.PARAMETER: Role.PARAMETER,
        InputKind.BUFFER: Role.BUFFER,
        InputKind.CONSTANT_TENSOR: Role.CONSTANT,
    }
    return Value(roles[kind], target)


@contextmanager
def _buffers_assigned_in_place() -> Iterator[None]:
    """`self.mean = new` updates the buffer as `self.mean.copy_(new)` does, but the tracer sees only the latter."""
    assign = nn.Module.__setattr__

    def assign_or_copy(module: nn.Module, name: str, value: Any) -> None:
        buffer = module.__dict__.get("_buffers", {}).get(name)
        fits = isinstance(buffer, Tensor) and isinstance(value, Tensor) and buffer.shape == value.shape
        if fits and buffer is not value:
            buffer.copy_(value)
        else:
            assign(module, name, value)

    nn.Module.__setattr__ = assign_or_copy
    try:
        yield
    finally:
        nn.Module.__setattr__ = assign


@contextmanager
def _tracing() -> Iterator[None]:
    """What torch.export cannot follow is the user's error. It also warns about internals that no user can change."""
    try:
        with warnings.catch_warnings(), _buffers_assigned_in_place():
            warnings.simplefilter("ignore")
            yield
    except UserError as error:
        raise UserError(str(error).splitlines()[0]) from error  # fx appends the node and a traceback
    except (RuntimeError, NotImplementedError, AssertionError) as error:
        if isinstance(error, AssertionError):
            raise
        raise UserError(
            f"model: torch.export cannot trace it ({one_line(error)}); remove Python branches that depend on values"
        ) from error
