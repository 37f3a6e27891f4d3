"""Questions a schedule rule asks of a block: what it computes, how it reads, who consumes it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import tirx
from tvm.ir.expr import Call, TensorLoad
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV, ScheduleError
from tvm.s_tir.stmt import SBlockRealize
from tvm_ffi import structural_walk

_SPATIAL, _REDUCE = 0, 2
_COSTLY = ("exp", "log", "tanh", "erf", "pow", "sigmoid", "sin", "cos", "sqrt")


@dataclass(frozen=True)
class Block:
    """A snapshot of one block: valid until the schedule changes it."""

    rv: SBlockRV
    node: Any

    @property
    def name(self) -> str:
        """The name its kernel gave it."""
        return self.node.name_hint

    @property
    def kinds(self) -> list[int]:
        """The kind of each loop variable, as TVM numbers them."""
        return [int(v.iter_type) for v in self.node.iter_vars]

    @property
    def spatial(self) -> list[int]:
        """Extents of the data-parallel axes."""
        return [int(v.dom.extent) for v in self.node.iter_vars if int(v.iter_type) == _SPATIAL]

    @property
    def reduce(self) -> list[int]:
        """Extents of the reduction axes."""
        return [int(v.dom.extent) for v in self.node.iter_vars if int(v.iter_type) == _REDUCE]

    @property
    def spatial_vars(self) -> list[tirx.Var]:
        """Loop variables of the result's axes."""
        return [v.var for v in self.node.iter_vars if int(v.iter_type) == _SPATIAL]

    @property
    def reduce_vars(self) -> list[tirx.Var]:
        """Loop variables that are summed over."""
        return [v.var for v in self.node.iter_vars if int(v.iter_type) == _REDUCE]

    @property
    def work(self) -> int:
        """Points of the whole iteration space."""
        return prod(self.spatial) * prod(self.reduce)

    @property
    def buffer(self) -> Any:
        """The one buffer this block writes."""
        return self.node.writes[0].source

    @property
    def is_regular(self) -> bool:
        """One store at the spatial axes, in order: C[i, j, ...] = value."""
        body, spatial = self.node.body, self.spatial_vars
        if len(self.node.writes) != 1 or not isinstance(body, tirx.BufferStore):
            return False
        if set(self.kinds) - {_SPATIAL, _REDUCE}:
            return False
        return len(body.indices) == len(spatial) and all(
            isinstance(i, tirx.Var) and i.same_as(v) for i, v in zip(body.indices, spatial, strict=True)
        )

    @property
    def is_injective(self) -> bool:
        """Whether it stores one value per element, and reduces nothing."""
        body = self.node.body
        if self.reduce or self.node.init is not None or len(self.node.writes) != 1:
            return False
        return isinstance(body, tirx.BufferStore) and set(self.kinds) <= {_SPATIAL}

    @property
    def loads(self) -> list[TensorLoad]:
        """Every load of the body but that of the accumulator itself."""
        found: list[TensorLoad] = []
        structural_walk(self.node.body, [(TensorLoad, found.append)])
        return [load for load in found if not load.source.same_as(self.buffer)]

    @property
    def is_costly(self) -> bool:
        """Calls a function that is worth storing rather than computing twice."""
        calls: list[Call] = []
        structural_walk(self.node.body, [(Call, calls.append)])
        return any(word in str(call.op) for call in calls for word in _COSTLY)

    @property
    def factors(self) -> tuple[TensorLoad, TensorLoad] | None:
        """The two operands of C += A * B, or None."""
        if not (self.is_regular and self.reduce and isinstance(self.node.body.value, tirx.Add)):
            return None
        product = self.node.body.value.b
        if not isinstance(product, tirx.Mul):
            return None
        pair = product.a, product.b
        return pair if all(isinstance(load, TensorLoad) for load in pair) else None


def list_blocks(sch: Schedule) -> list[Block]:
    """The blocks under the root, in program order."""
    return [Block(rv, sch.get(rv)) for rv in sch.get_child_blocks(sch.get_sblock("root"))]


def find_block(sch: Schedule, name: str) -> Block:
    """The block of this name."""
    rv = sch.get_sblock(name)
    return Block(rv, sch.get(rv))


def writes_output(sch: Schedule, block: Block) -> bool:
    """Whether the block writes a parameter of the function rather than an intermediate."""
    params = sch.mod["main"].params
    return any(write.source.same_as(param) for write in block.node.writes for param in params)


def ancestors(sch: Schedule, block: Block) -> set[str]:
    """Names of the blocks whose results reach `block`."""
    found: set[str] = set()
    queue = [block.rv]
    while queue:
        for rv in sch.get_producers(queue.pop()):
            name = sch.get(rv).name_hint
            if name not in found:
                found.add(name)
                queue.append(rv)
    return found


def access(load: TensorLoad, var: tirx.Var, width: int) -> str:
    """How `width` neighbours of `var` read: "unit" (consecutive), "same" (one address) or "gather".

    Probed with every other variable at zero: a hint for speed, never for correctness.
    """
    shape = [int(d) for d in load.source.shape]
    addresses = []
    for lane in range(width):
        flat = 0
        for index, size in zip(load.indices, shape, strict=True):
            value = _evaluate(index, var, lane)
            if value is None:
                return "gather"
            flat = flat * size + value
        addresses.append(flat)
    steps = {b - a for a, b in itertools.pairwise(addresses)}
    if steps <= {0}:
        return "same"
    return "unit" if steps == {1} else "gather"


_ARITHMETIC: dict[type, Callable[[int, int], int]] = {
    tirx.Add: lambda a, b: a + b,
    tirx.Sub: lambda a, b: a - b,
    tirx.Mul: lambda a, b: a * b,
    tirx.FloorDiv: lambda a, b: a // b,
    tirx.FloorMod: lambda a, b: a % b,
    tirx.Min: min,
    tirx.Max: max,
}


def _evaluate(index: Any, var: tirx.Var, value: int) -> int | None:
    """An index expression with `var` at `value` and all else at zero; None where it is not plain arithmetic."""
    if isinstance(index, int):
        return index
    if isinstance(index, tirx.IntImm):
        return int(index.value)
    if isinstance(index, tirx.Var):
        return value if index.same_as(var) else 0
    if isinstance(index, tirx.Cast):
        return _evaluate(index.value, var, value)
    operation = _ARITHMETIC.get(type(index))
    if operation is None:
        return None
    a, b = _evaluate(index.a, var, value), _evaluate(index.b, var, value)
    return None if a is None or b is None else operation(a, b)


def same_point(indices: Any, variables: list[tirx.Var]) -> bool:
    """Whether a load's indices are exactly these variables, in order."""
    return len(indices) == len(variables) and all(
        _is(index, var) for index, var in zip(indices, variables, strict=True)
    )


def _is(index: Any, var: tirx.Var) -> bool:
    while isinstance(index, tirx.Cast):
        index = index.value
    return isinstance(index, tirx.Var) and index.same_as(var)


def has_axis_loops(sch: Schedule, block: Block) -> bool:
    """Whether the block's loops are still one per axis."""
    try:
        axis_loops(sch, block)
    except ScheduleError:
        return False
    return True


def axis_loops(sch: Schedule, block: Block) -> list[LoopRV]:
    """The loop of every axis, in the block's order; a ScheduleError where they are not one per axis."""
    loops = sch.get_loops(block.rv)
    if len(loops) != len(block.kinds) or not loops:
        raise ScheduleError(f"{block.name}: {len(loops)} loops for {len(block.kinds)} axes")
    realizes: list[SBlockRealize] = []
    structural_walk(sch.get(loops[0]), [(SBlockRealize, realizes.append)])
    (values,) = (realize.iter_values for realize in realizes if realize.block.same_as(block.node))
    found = []
    for value in values:
        match = [loop for loop in loops if isinstance(value, tirx.Var) and sch.get(loop).loop_var.same_as(value)]
        if len(match) != 1:
            raise ScheduleError(f"{block.name}: an axis is bound to '{value}', not to a loop")
        found.append(match[0])
    return found


def split_axes(block: Block, loops: list[LoopRV]) -> tuple[list[LoopRV], list[LoopRV]]:
    """(spatial, reduction) loops out of loops in the block's order."""
    spatial = [loop for loop, kind in zip(loops, block.kinds, strict=True) if kind == _SPATIAL]
    return spatial, [loop for loop, kind in zip(loops, block.kinds, strict=True) if kind == _REDUCE]


def factor(sch: Schedule, loop: LoopRV, axis: int, final: str) -> Block:
    """Make the reduction loop a spatial axis of partial sums at position `axis`; block `final` adds the parts up.

    TVM leaves the axes of both blocks in an order of its own: put them back to spatial as stored, then reductions.
    """
    rv = sch.rfactor(loop, axis)
    _order_axes(sch, Block(rv, sch.get(rv)))
    _order_axes(sch, find_block(sch, final))
    return find_block(sch, sch.get(rv).name_hint)


def _order_axes(sch: Schedule, block: Block) -> None:
    variables = [v.var for v in block.node.iter_vars]
    stored = [
        next(at for at, var in enumerate(variables) if var.same_as(index))
        for index in block.node.body.indices
        if isinstance(index, tirx.Var)
    ]
    order = stored + [at for at in range(len(variables)) if at not in stored]
    if order != list(range(len(order))):
        sch.reorder_block_iter_var(block.rv, order)
