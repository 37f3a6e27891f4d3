"""A lowered graph as the driver sees it: kernel calls in order, over numbered buffers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import tvm
from tvm import relax

from gfcompile.codegen.lower import ENTRY
from gfcompile.errors import ContractError
from gfcompile.step import STATE, Role, Step, Value

IN_PLACE = {"sgd_update": (0, 1), "sgd_update_plain": (0,)}  # kernel -> inputs that its outputs overwrite, in order


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
        itemsize = 1 if self.dtype == "bool" else np.dtype(self.dtype).itemsize
        return math.prod(self.shape) * itemsize


@dataclass(frozen=True)
class Call:
    """One kernel call: indices into the program's buffers."""

    kernel: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass
class Program:
    """`results[i]` is the buffer of the signature's i-th output; `functions` are the unscheduled kernels by name."""

    name: str
    buffers: list[Buffer]
    calls: list[Call]
    results: list[int]
    outputs: list[Value]
    functions: dict[str, tvm.tirx.PrimFunc] = field(repr=False)

    def last_reads(self) -> dict[int, int]:
        """Buffer -> index of the last call that touches it; results live to the end."""
        last: dict[int, int] = {}
        for index, call in enumerate(self.calls):
            for buffer in (*call.inputs, *call.outputs):
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


def make_program(name: str, module: tvm.IRModule, step: Step) -> Program:
    """Read the bindings of the lowered module's entry."""
    reader = _Reader(module, step)
    program = Program(name, reader.buffers, reader.calls, reader.results, list(step.outputs), reader.functions)
    program.calls = _ordered(program)
    return program


class _Reader:
    def __init__(self, module: tvm.IRModule, step: Step) -> None:
        entry = module[ENTRY]
        self.buffers: list[Buffer] = []
        self.calls: list[Call] = []
        self.places: dict[relax.Var, int | tuple[int, ...]] = {}
        self.functions: dict[str, tvm.tirx.PrimFunc] = {}
        for variable, value in zip(entry.params, step.inputs, strict=True):
            self.places[variable] = self._new(variable.name, variable.ty, value)
        for block in entry.body.blocks:
            for binding in block.bindings:
                self._read(module, binding.var, binding.value)
        result = self.places[entry.body.body]
        self.results = list(result) if isinstance(result, tuple) else [result]

    def _new(self, name: str, ty: relax.TensorType, value: Value | None = None, literal: bytes | None = None) -> int:
        shape = tuple(int(size) for size in ty.shape)
        self.buffers.append(Buffer(name, shape, str(ty.dtype), value, literal))
        return len(self.buffers) - 1

    def _read(self, module: tvm.IRModule, var: relax.Var, value: relax.Expr) -> None:
        if isinstance(value, relax.Call) and value.op.name == "relax.call_tir":
            kernel = value.args[0].name_hint
            self.functions[kernel] = module[value.args[0]]
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


def _ordered(program: Program) -> list[Call]:
    """The calls in their order, except that an in-place update waits for every other reader of the old value."""
    producer = {buffer: index for index, call in enumerate(program.calls) for buffer in call.outputs}
    before: list[set[int]] = [{producer[b] for b in call.inputs if b in producer} for call in program.calls]
    overwritten = {
        call.inputs[position]: index
        for index, call in enumerate(program.calls)
        for position in in_place_inputs(call, program.buffers)
    }
    for index, call in enumerate(program.calls):
        for buffer in call.inputs:
            if overwritten.get(buffer, index) != index:
                before[overwritten[buffer]].add(index)
    done: set[int] = set()
    order: list[int] = []
    waiting = list(range(len(program.calls)))
    while waiting:
        ready = next((index for index in waiting if before[index] <= done), None)
        if ready is None:
            raise ContractError(f"program '{program.name}': an update overwrites a value that its own gradient needs")
        waiting.remove(ready)
        done.add(ready)
        order.append(ready)
    return [program.calls[index] for index in order]


def in_place_inputs(call: Call, buffers: Sequence[Buffer]) -> tuple[int, ...]:
    """Positions of the inputs that the call's outputs overwrite: state tensors of an update kernel."""
    base = call.kernel.rstrip("0123456789")
    positions = IN_PLACE.get(base, ())
    values = [buffers[call.inputs[position]].value for position in positions]
    return positions if all(value is not None and value.role in STATE for value in values) else ()
