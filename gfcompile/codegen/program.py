"""A lowered graph as the driver sees it: kernel calls in order, over numbered buffers."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import tvm
from tvm import relax

from gfcompile.codegen.lower import ENTRY
from gfcompile.codegen.order import order_calls
from gfcompile.codegen.scheduling import Scheduler
from gfcompile.errors import ContractError
from gfcompile.step import STATE, Role, Step, Value

DELIVERED = (Role.GRADIENT, Role.OUTPUT, Role.FEATURE)  # results that the caller gets
ALIGNMENT = 64  # bytes: of every slot of the arena
# outputs overwrite the first inputs
IN_PLACE = ("sgd_update", "sgd_update_plain", "adam_update", "rmsprop_update", "put_weights")


@dataclass(frozen=True)
class Buffer:
    """A tensor of the program. `value` is set for the signature's inputs, `literal` for constants born in lowering."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    value: Value | None = None
    literal: bytes | None = None

    @property
    def bytes(self) -> int:
        """Its size in the arena."""
        itemsize = 1 if self.dtype == "bool" else np.dtype(self.dtype).itemsize
        return math.prod(self.shape) * itemsize

    @property
    def slot_bytes(self) -> int:
        """What it takes of the arena."""
        return -(-self.bytes // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Call:
    """One kernel call: indices into the program's buffers. `workspace` is what it needs beside its operands."""

    kernel: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    workspace: int | None = None

    @property
    def born(self) -> tuple[int, ...]:
        """The buffers that come to life with it."""
        return self.outputs if self.workspace is None else (*self.outputs, self.workspace)


@dataclass
class Program:
    """`results[i]` is the buffer of the signature's i-th output; `functions` are the unscheduled kernels by name.

    `takeovers` holds, by kernel, the positions (output, input) where the output may be written over the input.
    """

    name: str
    buffers: list[Buffer]
    calls: list[Call]
    results: list[int]
    outputs: list[Value]
    functions: dict[str, tvm.tirx.PrimFunc] = field(repr=False)
    takeovers: dict[str, frozenset[tuple[int, int]]] = field(default_factory=dict, repr=False)

    def overwrites(self) -> dict[int, int]:
        """Updated result -> the state buffer it replaces."""
        return {
            output: call.inputs[position]
            for call in self.calls
            for output, position in zip(call.outputs, in_place_inputs(call, self.buffers), strict=False)
        }

    def delivered(self) -> dict[int, int]:
        """Result -> its position in `results`, for those that are written straight to where the caller wants them."""
        produced = {buffer for call in self.calls for buffer in call.outputs}
        found: dict[int, int] = {}
        for position, (buffer, value) in enumerate(zip(self.results, self.outputs, strict=True)):
            if buffer in produced and value.role in DELIVERED:
                found.setdefault(buffer, position)  # a second wish for the same buffer is a copy
        return found

    def temporaries(self) -> set[int]:
        """The buffers that need a place in the arena."""
        elsewhere = self.overwrites().keys() | self.delivered().keys()
        return {buffer for call in self.calls for buffer in call.born} - elsewhere

    def heirs(self, call: Call, free: Container[int]) -> dict[int, int]:
        """Output -> the input whose slot it takes, where the kernel allows it; of the buffers in `free` only.

        Each slot has one heir. An input passed twice must be allowed at both positions.
        """
        allowed = self.takeovers.get(call.kernel, frozenset())
        found: dict[int, int] = {}
        for at, output in enumerate(call.outputs):
            for source in dict.fromkeys(call.inputs):
                positions = [position for position, buffer in enumerate(call.inputs) if buffer == source]
                legal = all((at, position) in allowed for position in positions)
                if legal and output in free and source in free and source not in found.values():
                    found[output] = source
                    break
        return found

    def last_reads(self) -> dict[int, int]:
        """Buffer -> index of the last call that touches it; results live to the end."""
        last: dict[int, int] = {}
        for index, call in enumerate(self.calls):
            for buffer in (*call.inputs, *call.born):
                last[buffer] = index
        for buffer in self.results:
            last[buffer] = len(self.calls)
        return last

    def loss_call(self) -> int:
        """Index of the call that completes the forward pass."""
        loss = self.results[[value.role for value in self.outputs].index(Role.LOSS)]
        return next(index for index, call in enumerate(self.calls) if loss in call.outputs)

    def saved(self) -> list[int]:
        """Buffers that cross from the forward to the backward pass, the loss itself aside."""
        boundary, last = self.loss_call(), self.last_reads()
        produced = {buffer for call in self.calls[: boundary + 1] for buffer in call.outputs}
        return sorted(b for b in produced if boundary < last[b] < len(self.calls))

    @property
    def saved_bytes(self) -> int:
        """Bytes kept from the forward pass for the backward pass."""
        return sum(self.buffers[index].bytes for index in self.saved())


def make_program(name: str, module: tvm.IRModule, step: Step, scheduler: Scheduler) -> Program:
    """Read the bindings of the lowered module's entry; the schedules say what its kernels need."""
    reader = _Reader(module, step)
    scheduled = {kernel: scheduler(function) for kernel, function in reader.functions.items()}
    takeovers = {kernel: found.takeovers for kernel, found in scheduled.items()}
    reader.add_workspaces({kernel: found.workspace.shared for kernel, found in scheduled.items()})
    outputs = list(step.outputs)
    program = Program(name, reader.buffers, reader.calls, reader.results, outputs, reader.functions, takeovers)
    program.calls = order_calls(program)
    return program


def read_kernels(module: tvm.IRModule) -> dict[str, tvm.tirx.PrimFunc]:
    """The kernels that a lowered module calls, by name, in the order of their first calls."""
    values = [binding.value for block in module[ENTRY].body.blocks for binding in block.bindings]
    return {value.args[0].name_hint: module[value.args[0]] for value in values if _calls_kernel(value)}


def _calls_kernel(value: relax.Expr) -> bool:
    return isinstance(value, relax.Call) and value.op.name == "relax.call_tir"


class _Reader:
    def __init__(self, module: tvm.IRModule, step: Step) -> None:
        entry = module[ENTRY]
        self.buffers: list[Buffer] = []
        self.calls: list[Call] = []
        self.places: dict[relax.Var, int | tuple[int, ...]] = {}
        self.functions = read_kernels(module)
        for variable, value in zip(entry.params, step.inputs, strict=True):
            self.places[variable] = self._new(variable.name, variable.ty, value)
        for block in entry.body.blocks:
            for binding in block.bindings:
                self._read(binding.var, binding.value)
        result = self.places[entry.body.body]
        self.results = list(result) if isinstance(result, tuple) else [result]

    def add_workspaces(self, sizes: Mapping[str, int]) -> None:
        """Give each call a buffer for what its kernel allocates outside parallel loops."""
        for index, call in enumerate(self.calls):
            size = sizes[call.kernel]
            if size:
                self.buffers.append(Buffer(f"workspace of {call.kernel}", (size,), "uint8"))
                self.calls[index] = replace(call, workspace=len(self.buffers) - 1)

    def _new(self, name: str, ty: relax.TensorType, value: Value | None = None, literal: bytes | None = None) -> int:
        shape = tuple(int(size) for size in ty.shape)
        self.buffers.append(Buffer(name, shape, str(ty.dtype), value, literal))
        return len(self.buffers) - 1

    def _read(self, var: relax.Var, value: relax.Expr) -> None:
        if _calls_kernel(value):
            kernel = value.args[0].name_hint
            inputs = tuple(self._single(arg) for arg in value.args[1].fields)
            if isinstance(var.ty, relax.TupleType):
                outputs = tuple(self._new(f"{var.name}_{i}", ty) for i, ty in enumerate(var.ty.fields))
                self.places[var] = outputs
            else:
                outputs = (self._new(var.name, var.ty),)
                self.places[var] = outputs[0]
            self.calls.append(Call(kernel, inputs, outputs))
        elif isinstance(value, relax.TupleGetItem):
            parts = self.places[value.tuple_value]
            self.places[var] = parts[value.index]  # type: ignore[index]
        elif isinstance(value, relax.Tuple):
            self.places[var] = tuple(self._single(part) for part in value.fields)
        elif isinstance(value, relax.Var):
            self.places[var] = self.places[value]
        elif isinstance(value, tvm.ir.GenericConst):
            self.places[var] = self._single(value)
        else:
            raise ContractError(f"lowering left '{value}', which is not a kernel call")

    def _single(self, expr: relax.Expr) -> int:
        if isinstance(expr, tvm.ir.GenericConst):
            data = expr.value.numpy()
            return self._new(f"literal{len(self.buffers)}", expr.ty, literal=np.ascontiguousarray(data).tobytes())
        place = self.places[expr]
        if isinstance(place, tuple):
            raise ContractError(f"lowering passes the tuple '{expr}' to a kernel")
        return place


def in_place_inputs(call: Call, buffers: Sequence[Buffer]) -> tuple[int, ...]:
    """Positions of the inputs that the call's outputs overwrite: state tensors of an update kernel."""
    base = call.kernel.rstrip("0123456789")
    positions = tuple(range(len(call.outputs))) if base in IN_PLACE else ()
    values = [buffers[call.inputs[position]].value for position in positions]
    return positions if all(value is not None and value.role in STATE for value in values) else ()
