"""An exported program in core ATen, without any change in place; with a loss, forward and backward as one graph.

before: conv2d, batch_norm, relu_, a loss   ==>   after: convolution, _native_batch_norm_legit, relu, ..., gradients

One pass over the program, on shapes alone: PyTorch's dispatcher takes composite operators apart, its functionalization
turns changes in place into values, autograd differentiates, and a tracer notes the operators that arrive. AOTAutograd,
which `run_decompositions` calls, sends a program through three times, for inputs that alias and change one another:
torch.export has refused most of those by then, and `_refuse_shared_memory` the rest. The operators are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, fx
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx.experimental.proxy_tensor import make_fx

from gfcompile.errors import UserError
from gfcompile.frontend.decompositions import decompositions
from gfcompile.settings.words import option
from gfcompile.step import Body

LOSS = 0  # the place of the loss among a program's outputs
_KEPT = ("val", "stack_trace")  # what later stages read of a node beside its call


@dataclass(frozen=True)
class CoreProgram:
    """A graph in core ATen. Its outputs are the buffers that it changes, those of the exported program, gradients."""

    body: Body
    signature: ExportGraphSignature
    tensors: dict[str, Tensor]

    @property
    def graph(self) -> fx.Graph:
        """Its nodes."""
        return self.body.graph


def flatten(program: ExportedProgram) -> CoreProgram:
    """The program's operators taken apart."""
    return _trace(program, with_gradients=False)


def differentiate(program: ExportedProgram) -> CoreProgram:
    """The same with the gradients of the loss, its only output, for every input that requires one."""
    return _trace(program, with_gradients=True)


def _trace(program: ExportedProgram, with_gradients: bool) -> CoreProgram:
    body, signature = program.graph_module, program.graph_signature
    placeholders = [node for node in body.graph.nodes if node.op == "placeholder"]
    examples = [node.meta["val"] for node in placeholders]
    wanted = [
        index
        for index, (spec, value) in enumerate(zip(signature.input_specs, examples, strict=True))
        if spec.kind is InputKind.PARAMETER and value.requires_grad  # a buffer's example may, once it was updated
    ]
    changed: list[int] = []

    def run(*values: object) -> tuple[object, ...]:
        inputs = [torch._to_functional_tensor(value) if isinstance(value, Tensor) else value for value in values]
        trained = [value for index in wanted if isinstance(value := inputs[index], Tensor)]
        for tensor in trained:
            tensor.requires_grad_()  # also without gradients: PyTorch takes some products apart by it
        with _functional():
            results = fx.Interpreter(body).run(*inputs)
            gradients = _gradients(results[LOSS], trained) if with_gradients else ()
        changed.extend(index for index, value in enumerate(inputs) if _has_changed(value))
        return tuple(_settled(value) for value in (*(inputs[index] for index in changed), *results, *gradients))

    with _tracing_shapes(examples):
        traced = make_fx(run, decompositions())(*[x.detach() if isinstance(x, Tensor) else x for x in examples])
    inputs = signature.input_specs
    kept = [place for place, index in enumerate(changed) if _is_kept(inputs[index])]
    results = list(range(len(changed), len(traced.graph.output_node().args[0])))
    graph = _copied(traced.graph, [node.name for node in placeholders], [*kept, *results])
    outputs = [(OutputKind.BUFFER_MUTATION, inputs[changed[place]].target) for place in kept]
    if with_gradients:
        outputs.append((OutputKind.LOSS_OUTPUT, None))
        outputs += [(OutputKind.GRADIENT_TO_PARAMETER, inputs[index].target) for index in wanted]
    else:
        outputs += [(spec.kind, spec.target) for spec in signature.output_specs]
    specs = [
        OutputSpec(kind, TensorArgument(getattr(node, "name", "")), target)
        for (kind, target), node in zip(outputs, graph.output_node().args[0], strict=True)
    ]
    stored = {**program.constants, **program.state_dict}
    _refuse_shared_memory([inputs[changed[place]] for place in kept], inputs, stored)
    tensors = {name: value.detach() for name, value in stored.items() if isinstance(value, Tensor)}
    return CoreProgram(Body(traced, graph), ExportGraphSignature(list(inputs), specs), tensors)


def _gradients(loss: Tensor, trained: Sequence[Tensor]) -> Sequence[Tensor]:
    found = torch.autograd.grad(loss, trained, allow_unused=True) if loss.requires_grad else [None]
    if any(gradient is None for gradient in found):
        way_out = f"name the layers that it does with {option('train')}"
        raise UserError(f"model: the loss does not depend on all that is to be trained; {way_out}")
    return found


def _has_changed(value: object) -> bool:
    return isinstance(value, Tensor) and torch._functionalize_has_data_mutation(value)


def _settled(value: object) -> object:
    """A value with all that was done to it in place, for the tracer."""
    if not isinstance(value, Tensor) or not torch._is_functional_tensor(value):
        return value
    torch._sync(value)
    return torch._from_functional_tensor(value)


def _is_kept(spec: InputSpec) -> bool:
    """Whether a new value of this input is a result. A buffer's is; of a batch that was changed, nobody reads it."""
    if spec.kind not in (InputKind.BUFFER, InputKind.USER_INPUT):
        raise UserError(f"model: its forward pass changes '{spec.target}' in place; only buffers may change")
    return spec.kind is InputKind.BUFFER


def _refuse_shared_memory(
    changed: Sequence[InputSpec], inputs: Sequence[InputSpec], stored: Mapping[str, object]
) -> None:
    """A change of one tensor would have to be seen in another that lies in it. One under two names is read by one."""
    found = [(spec.target, stored.get(spec.target)) for spec in inputs if spec.target is not None]
    tensors = {name: tensor for name, tensor in found if isinstance(tensor, Tensor) and tensor.numel()}
    for spec in changed:
        if spec.target not in tensors:
            continue
        new = tensors[spec.target]
        for name, other in tensors.items():
            shares = other.untyped_storage().data_ptr() == new.untyped_storage().data_ptr()
            if shares and _place(other) != _place(new):
                raise UserError(
                    f"model: its forward pass changes '{spec.target}', and '{name}' lies in the same memory; give one"
                    " of them a copy with .clone()"
                )


def _place(tensor: Tensor) -> tuple[object, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


@contextmanager
def _functional() -> Iterator[None]:
    """Changes in place become values; views stay views."""
    torch._enable_functionalization(reapply_views=True)
    try:
        yield
    finally:
        torch._disable_functionalization()


@contextmanager
def _tracing_shapes(examples: Sequence[object]) -> Iterator[None]:
    """Operators of our CPU's libraries stay out; what PyTorch takes apart in Python is; nodes remember user's lines."""
    with ExitStack() as modes:
        for backend in (torch.backends.mkldnn, torch.backends.nnpack, torch.backends.cudnn):
            modes.callback(backend.set_flags, *backend.set_flags(False))  # its `flags` would set others too, and warn
        modes.enter_context(next(value for value in examples if isinstance(value, FakeTensor)).fake_mode)
        modes.enter_context(enable_python_dispatcher())
        modes.enter_context(fx.traceback.preserve_node_meta())
        yield


def _copied(graph: fx.Graph, inputs: Sequence[str], outputs: Sequence[int]) -> fx.Graph:
    """What these of the outputs need, with inputs of these names; other nodes are named and numbered anew."""
    results = graph.output_node().args[0]
    graph.output_node().args = (tuple(results[place] for place in outputs),)
    graph.eliminate_dead_code()
    found, names = fx.Graph(), iter(inputs)
    copies: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        args, kwargs = fx.map_arg((node.args, node.kwargs), copies.__getitem__)
        if node.op == "placeholder":
            name = next(names)
            copies[node] = found.placeholder(name)
            copies[node].name = copies[node].target = name  # fx lets nothing be called as a builtin is, such as `input`
        else:
            packet = getattr(node.target, "overloadpacket", node.target)
            called = getattr(packet, "__name__", None)
            _refuse_sizes_of_values(called, node.meta.get("val"))
            copies[node] = found.create_node(node.op, node.target, args, kwargs, called)
        copies[node].meta = {key: node.meta[key] for key in _KEPT if key in node.meta}
    return found


def _refuse_sizes_of_values(name: str | None, value: object) -> None:
    sizes = value.shape if isinstance(value, Tensor) else [value]
    if any(isinstance(size, torch.SymInt) for size in sizes):
        raise UserError(
            f"model: '{name}' gives as much as values ask for, such as the places where a mask is true; every tensor of"
            " a step has its size: use torch.where"
        )
