"""Which inputs a kernel may write its output over: those it reads only at the element it is about to write.

The kernel is looked at as it is before scheduling, one block per stage. An input may be taken over if every stage its
values reach works point by point (equal position in memory read and written, each position once) and just one output
is among them. Then no schedule can read an element after it was replaced: a stage is inlined into the output's store,
computed for the same positions just before it, or finished as a whole before.

A kernel with a reduction is refused, though a convolution whose epilogue adds a residual could write over that: what
runs in place is compiled without `noalias`, and ResNet-18's convolutions then took three times as long (measured).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
from tvm import tirx
from tvm.ir.expr import Call, TensorLoad
from tvm.s_tir.stmt import SBlock, SBlockRealize
from tvm.sym import Analyzer
from tvm_ffi import structural_walk

_SPATIAL = 0
# functions of numbers; any other call may take an address and read elsewhere
_NUMERIC = frozenset(
    {"prim.if_then_else"}
    | {f"tirx.{name}" for name in ("exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "erf", "pow", "fabs", "floor")}
)


@dataclass(frozen=True)
class _Stage:
    """A block of the kernel, with all its stores and loads."""

    block: SBlock
    stores: list[tirx.BufferStore]
    loads: list[TensorLoad]

    @property
    def is_reduction(self) -> bool:
        return self.block.init is not None or any(int(axis.iter_type) != _SPATIAL for axis in self.block.iter_vars)

    def writes(self, buffer: tirx.Var) -> bool:
        return any(store.buffer.same_as(buffer) for store in self.stores)

    def reads(self, buffer: tirx.Var) -> bool:
        return any(load.source.same_as(buffer) for load in self.loads)


def find_takeovers(function: tirx.PrimFunc) -> frozenset[tuple[int, int]]:
    """(output, input) positions among the kernel's outputs and inputs such that the output may lie on the input."""
    stages = _stages(function)
    outputs = _outputs(function, stages)
    inputs = function.params[: len(function.params) - len(outputs)]
    return frozenset(
        (at, source)
        for at, output in enumerate(outputs)
        for source, taken in enumerate(inputs)
        if _refusal(stages, function.params, output, taken) is None
    )


def count_outputs(function: tirx.PrimFunc) -> int:
    """How many of the kernel's parameters, the last ones, it writes."""
    return len(_outputs(function, _stages(function)))


def explain_refusal(function: tirx.PrimFunc, output: int, source: int) -> str | None:
    """Why parameter `output` must not lie on parameter `source`; None where it may."""
    return _refusal(_stages(function), function.params, function.params[output], function.params[source])


def _outputs(function: tirx.PrimFunc, stages: list[_Stage]) -> list[tirx.Var]:
    return [buffer for buffer in function.params if any(stage.writes(buffer) for stage in stages)]


def _refusal(stages: list[_Stage], params: Sequence[tirx.Var], output: tirx.Var, source: tirx.Var) -> str | None:
    if _bytes(output) != _bytes(source) or _count(output) != _count(source):
        return f"{source.name} and {output.name} differ in size"
    if any(stage.writes(source) for stage in stages):
        return f"{source.name} is written"
    for stage in stages:
        if stage.is_reduction:
            return f"{stage.block.name_hint} is a reduction"
    reached = [source]
    for buffer in reached:  # grows while it is walked: what the values of `source` reach
        for stage in stages:
            if not stage.reads(buffer):
                continue
            reason = _not_pointwise(stage, buffer)
            if reason is not None:
                return f"{stage.block.name_hint} {reason}"
            target = stage.stores[0].buffer
            if sum(other.writes(target) for other in stages) != 1:
                return f"{target.name} is written in several stages"
            if not any(target.same_as(known) for known in reached):
                reached.append(target)
    results = [buffer for buffer in reached if any(buffer.same_as(param) for param in params)]
    if len(results) != 2 or not results[1].same_as(output):
        return f"{source.name} reaches {', '.join(result.name for result in results[1:]) or 'no output'}"
    return None


def _not_pointwise(stage: _Stage, buffer: tirx.Var) -> str | None:
    """What keeps the stage from using each element of `buffer` for the same element of its own result only."""
    block = stage.block
    if not isinstance(block.body, tirx.BufferStore) or len(block.match_buffers):
        return "is more than one store"
    calls: list[Call] = []
    structural_walk(block.body, [(Call, calls.append)])
    unknown = [name for name in (getattr(call.op, "name", str(call.op)) for call in calls) if name not in _NUMERIC]
    if unknown:
        return f"calls {unknown[0]}"
    store = block.body
    if not _covers_once(block, store):
        return f"does not write {store.buffer.name} in the order of its axes"
    analyzer = Analyzer()
    for axis in block.iter_vars:
        analyzer.bind(axis.var, axis.dom)
    place = _position(store.buffer, store.indices)
    for load in stage.loads:
        if load.source.same_as(buffer) and not analyzer.can_prove_equal(_position(buffer, load.indices), place):
            return f"reads {buffer.name} elsewhere than it writes"
    return None


def _covers_once(block: SBlock, store: tirx.BufferStore) -> bool:
    """Whether the stage stores to every element exactly once: its axes are the buffer's, from zero, in order."""
    axes, shape = list(block.iter_vars), store.buffer.shape
    if not shape:
        return all(int(axis.dom.extent) == 1 for axis in axes)
    return len(axes) == len(shape) == len(store.indices) and all(
        index.same_as(axis.var) and int(axis.dom.min) == 0 and int(axis.dom.extent) == int(size)
        for index, axis, size in zip(store.indices, axes, shape, strict=True)
    )


def _position(buffer: tirx.Var, indices: Sequence[Any]) -> Any:
    """The element's number in memory."""
    flat: Any = tirx.IntImm("int64", 0)
    for index, size in zip(indices, buffer.shape, strict=True):
        flat = flat * tirx.IntImm("int64", int(size)) + tirx.Cast("int64", index)
    return flat


def _stages(function: tirx.PrimFunc) -> list[_Stage]:
    blocks: list[SBlock] = []
    if isinstance(function.body, SBlockRealize):
        structural_walk(function.body.block.body, [(SBlock, blocks.append)])
    return [_Stage(block, _found(block, tirx.BufferStore), _found(block, TensorLoad)) for block in blocks]


def _found(block: SBlock, kind: type) -> list[Any]:
    found: list[Any] = []
    structural_walk(block.body, [(kind, found.append)])
    if block.init is not None:
        structural_walk(block.init, [(kind, found.append)])
    return found


def _count(buffer: tirx.Var) -> int:
    return prod(int(size) for size in buffer.shape)


def _bytes(buffer: tirx.Var) -> int:
    return _count(buffer) * ((tvm.runtime.DataType(buffer.dtype).bits + 7) // 8)
