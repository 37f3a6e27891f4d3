"""How long a kernel takes on a GPU that nobody has here: a static model, good for an order, never for a time.

What is counted is exact: every access and every operation of the scheduled loops, padding included, and the sectors of
memory that the lanes of a warp touch together. What it costs is assumed:

* arithmetic runs at the target's published peak; a value from shared memory costs `_SHARED_LOAD` multiply-adds, the
  indices of an access to global memory `_ADDRESSES`, a function such as exp `_FUNCTION`;
* so it does while every multiprocessor has as many blocks as the others, and `w` resident warps hide the latency of
  all but 1 in w / `_HALF_HIDDEN` + 1 of the time;
* operands cross memory once, at the published bandwidth; what is read again comes from caches, `_CACHED` times as fast;
* the shorter of arithmetic and memory hides behind the longer but for `_UNHIDDEN` of it; every launch costs `_LAUNCH`.

Bank conflicts, the cache's size and instructions that run in pairs are not modelled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm.ir.expr import Call, TensorLoad
from tvm.s_tir.stmt import SBlockRealize
from tvm_ffi import structural_walk

from gfcompile.codegen.cuda.ptxas import Usage
from gfcompile.targets.gpu import Gpu

_SHARED_LOAD = 2.0
_ADDRESSES = 8.0
_FUNCTION = 8.0
_HALF_HIDDEN = 4
_CACHED = 4.0
_UNHIDDEN = 0.25
_LAUNCH = 3e-6  # seconds
_SECTOR = 32  # bytes that memory hands out together
_BINARY = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Min, tirx.Max)
_EVALUATED = {
    tirx.Add: np.add,
    tirx.Sub: np.subtract,
    tirx.Mul: np.multiply,
    tirx.FloorDiv: np.floor_divide,
    tirx.FloorMod: np.mod,
    tirx.Min: np.minimum,
    tirx.Max: np.maximum,
}


@dataclass(frozen=True)
class Counts:
    """Of one launch, all its threads together."""

    operations: float  # multiply-adds, or as many of others
    shared_loads: float  # and stores
    accesses: float  # to global memory
    traffic: float  # bytes of the sectors that they touch
    operands: float  # bytes of the arrays they touch


@dataclass
class _Loops:
    """What encloses a statement: serial loops, and the threads that every loop of the same tag shares."""

    serial: list[tirx.For] = field(default_factory=list)
    threads: dict[str, int] = field(default_factory=dict)
    bound: list[tirx.For] = field(default_factory=list)
    values: dict[Any, Any] = field(default_factory=dict)  # of the blocks' axes

    def runs(self, variables: Sequence[Any] | None = None) -> float:
        """How often; with `variables`, unrolled turns that an access does not depend on are one."""
        turns = 1.0
        for loop in self.serial:
            if variables is None or loop.kind != tirx.ForKind.UNROLLED or _is_among(loop.loop_var, variables):
                turns *= int(loop.extent)
        return turns * prod(self.threads.values())


def count(part: tirx.PrimFunc) -> Counts:
    """Of a nest as `launches.cut` makes it."""
    counter = _Counter()
    counter.visit(part.body, _Loops())
    operands = sum(_bytes(buffer) for buffer in counter.touched)
    return Counts(counter.operations, counter.shared_loads, counter.accesses, counter.traffic, operands)


def estimate_seconds(
    parts: Iterable[Counts], usages: Iterable[Usage], gpu: Gpu, peak: float, bandwidth: float
) -> float:
    """Of one run, by the model; `peak` in floating-point operations per second, `bandwidth` in bytes."""
    return sum(_seconds(part, usage, gpu, peak, bandwidth) for part, usage in zip(parts, usages, strict=True))


def _seconds(part: Counts, usage: Usage, gpu: Gpu, peak: float, bandwidth: float) -> float:
    issued = part.operations + _SHARED_LOAD * part.shared_loads + _ADDRESSES * part.accesses
    most_blocks = -(-usage.blocks // gpu.multiprocessors)
    balance = usage.blocks / (most_blocks * gpu.multiprocessors)
    warps = -(-usage.threads // gpu.warp)
    resident = usage.occupancy * gpu.threads_per_multiprocessor / gpu.warp  # warps, if there are blocks enough
    hidden = min(resident, most_blocks * warps)
    hidden /= hidden + _HALF_HIDDEN
    arithmetic = issued / (peak / 2) / (balance * hidden)
    once = min(part.traffic, part.operands)
    memory = (once + (part.traffic - once) / _CACHED) / bandwidth / hidden
    return max(arithmetic, memory) + _UNHIDDEN * min(arithmetic, memory) + _LAUNCH


class _Counter:
    def __init__(self) -> None:
        self.operations = self.shared_loads = self.accesses = self.traffic = 0.0
        self.touched: list[tirx.Var] = []

    def visit(self, node: Any, loops: _Loops) -> None:
        if isinstance(node, tirx.For):
            self.visit(node.body, _within(node, loops))
        elif isinstance(node, SBlockRealize):
            axes = [axis.var for axis in node.block.iter_vars]
            values = {**loops.values, **dict(zip(axes, node.iter_values, strict=True))}
            self.visit(node.block.body, _Loops(loops.serial, loops.threads, loops.bound, values))
        elif isinstance(node, tirx.SeqStmt):
            for each in node.seq:
                self.visit(each, loops)
        elif isinstance(node, tirx.BufferStore):
            self._count_store(node, loops)

    def _count_store(self, store: tirx.BufferStore, loops: _Loops) -> None:
        self.operations += loops.runs() * _count_operations(store.value)
        loads: list[TensorLoad] = []
        structural_walk(store.value, [(TensorLoad, loads.append)])
        others = [load for load in loads if not load.source.same_as(store.buffer)]
        for load in others:
            self._count_access(load.source, load.indices, loops)
        if len(others) == len(loads):
            self._count_access(store.buffer, store.indices, loops)
        elif store.buffer.scope() == "global":  # a sum, kept in a register until it is done
            self._touch(store.buffer, prod(map(int, store.buffer.shape)), _element_bytes(store.buffer))

    def _count_access(self, buffer: tirx.Var, indices: Sequence[Any], loops: _Loops) -> None:
        runs = loops.runs(_variables(indices, loops.values))
        if buffer.scope() == "shared":
            self.shared_loads += runs
        elif buffer.scope() == "global":
            self._touch(buffer, runs, _bytes_a_lane(indices, buffer, loops))

    def _touch(self, buffer: tirx.Var, runs: float, bytes_a_lane: float) -> None:
        self.accesses += runs
        self.traffic += runs * bytes_a_lane
        if not _is_among(buffer, self.touched):
            self.touched.append(buffer)


def _within(loop: tirx.For, loops: _Loops) -> _Loops:
    if loop.kind != tirx.ForKind.THREAD_BINDING:
        return _Loops([*loops.serial, loop], loops.threads, loops.bound, loops.values)
    tag = str(loop.thread_binding.thread_tag)
    threads = {**loops.threads, tag: int(loop.extent)}
    return _Loops(loops.serial, threads, [*loops.bound, loop], loops.values)


def _count_operations(value: Any) -> float:
    """In multiply-adds: a product that is added at once is one."""
    found: list[Any] = []
    structural_walk(value, [(node, found.append) for node in (*_BINARY, Call)])
    floats = [node for node in found if _is_float(node)]
    functions = sum(isinstance(node, Call) for node in floats)
    products = sum(isinstance(node, tirx.Mul) for node in floats)
    others = len(floats) - functions - products
    return _FUNCTION * functions + max(products, others)


def _is_float(node: Any) -> bool:
    return str(node.ty.dtype).startswith("float") and not (
        isinstance(node, Call) and str(node.op.name).endswith("if_then_else")
    )


def _bytes_a_lane(indices: Sequence[Any], buffer: tirx.Var, loops: _Loops) -> float:
    """Of the sectors that the first warp touches in its first turn."""
    wide = loops.threads.get("threadIdx.x", 1)
    high = loops.threads.get("threadIdx.y", 1)
    lanes = np.arange(min(32, wide * high))
    at = {"threadIdx.x": lanes % wide, "threadIdx.y": lanes // wide}
    known = {loop.loop_var: at.get(str(loop.thread_binding.thread_tag), 0 * lanes) for loop in loops.bound}
    flat = 0 * lanes
    for index, size in zip(indices, buffer.shape, strict=True):
        flat = flat * int(size) + _evaluate(index, known, loops.values, lanes)
    sectors = len(np.unique(flat * _element_bytes(buffer) // _SECTOR))
    return _SECTOR * sectors / len(lanes)


def _evaluate(index: Any, known: Mapping[Any, np.ndarray], values: Mapping[Any, Any], lanes: np.ndarray) -> np.ndarray:
    """The index of every lane. Serial loops are at their beginning; a value out of memory is taken for zero."""
    operation = _EVALUATED.get(type(index))
    if operation is not None:
        a, b = (_evaluate(side, known, values, lanes) for side in (index.a, index.b))
        return np.asarray(operation(a, b))
    if isinstance(index, tirx.IntImm):
        return np.full_like(lanes, int(index))
    if isinstance(index, tirx.Cast):
        return _evaluate(index.value, known, values, lanes)
    if isinstance(index, tirx.Var):
        if index in values:
            return _evaluate(values[index], known, values, lanes)
        return known.get(index, 0 * lanes)
    return 0 * lanes


def _variables(indices: Iterable[Any], values: Mapping[Any, Any]) -> list[Any]:
    """The loops' variables that the indices depend on, through the blocks' axes."""
    found: list[Any] = []
    for index in indices:
        structural_walk(index, [(tirx.Var, found.append)])
    inner = [values[var] for var in found if var in values]
    return [var for var in found if var not in values] + (_variables(inner, values) if inner else [])


def _is_among(var: Any, others: Iterable[Any]) -> bool:
    return any(var.same_as(other) for other in others)


def _element_bytes(buffer: tirx.Var) -> int:
    return (tvm.runtime.DataType(buffer.dtype).bits + 7) // 8


def _bytes(buffer: tirx.Var) -> int:
    return prod(map(int, buffer.shape)) * _element_bytes(buffer)
