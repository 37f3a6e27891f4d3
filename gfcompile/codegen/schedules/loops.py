"""Plain schedules for one block: the stages around an anchor, element-wise blocks, odd loops."""

from __future__ import annotations

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV

from gfcompile.codegen.schedules.blocks import Block, axis_loops, has_axis_loops, same_point, split_axes
from gfcompile.codegen.schedules.choices import Choices
from gfcompile.codegen.schedules.tile import divisors, vector_width
from gfcompile.targets import Target

SERIAL_BELOW = 16 * 1024  # points of work under which a parallel launch costs more than it saves
_ENOUGH_TASKS = 32
_MOST_CHUNKS = 256


def parallelize(sch: Schedule, loops: list[LoopRV], work: int, enough: int = _ENOUGH_TASKS) -> list[LoopRV]:
    """Fuse leading loops until there are enough tasks and run them in parallel; small work stays serial.

    Returns the loops as they are afterwards. Only spatial loops may come here: no result depends on the thread count.
    """
    if work < SERIAL_BELOW or not loops:
        return loops
    count, taken = 1, 0
    for loop in loops:
        taken += 1
        count *= int(sch.get(loop).extent)
        if count >= enough:
            break
    if count == 1:
        return loops
    task = sch.fuse(*loops[:taken]) if taken > 1 else loops[0]
    sch.parallel(task)
    return [task, *loops[taken:]]


def pick_tasks(choices: Choices, name: str = "tasks") -> int:
    """How many tasks are enough."""
    return choices.pick(name, (4, 8, 16, _ENOUGH_TASKS, 64, 128), _ENOUGH_TASKS)


def schedule_injective(sch: Schedule, block: Block, target: Target) -> None:
    """Parallel outside, vectors along the last axis where the operands are read in order."""
    if not has_axis_loops(sch, block):
        return
    loops = axis_loops(sch, block)
    work = block.work
    if len(loops) > 1 and block.spatial[-1] % target.lanes and _is_flat(block):
        flat = target.lanes if work % target.lanes == 0 else max(divisors(work, 2 * target.lanes))
        outer, lane = sch.split(sch.fuse(*loops), [None, flat])
        tasks = max(divisors(work // flat, _MOST_CHUNKS))
        sch.vectorize(lane)
        parallelize(sch, list(sch.split(outer, [tasks, None])), work)
        return
    width = vector_width(block, target) if block.is_regular else None
    if width is None or width == 1:
        parallelize(sch, loops, work)
        return
    outer, lane = sch.split(loops[-1], [None, width])
    sch.vectorize(lane)
    parallelize(sch, [*loops[:-1], outer], work)


def _is_flat(block: Block) -> bool:
    """Whether the block maps equal shapes point by point, so that its axes can be seen as one."""
    return block.is_regular and all(
        [int(d) for d in load.source.shape] == block.spatial and same_point(load.indices, block.spatial_vars)
        for load in block.loads
    )


def schedule_plain(sch: Schedule, block: Block) -> None:
    """Spatial loops outside and in parallel, nothing else: right for every block whose loops are its axes."""
    if not has_axis_loops(sch, block):
        return
    loops = axis_loops(sch, block)
    space, reduce = split_axes(block, loops)
    if space and reduce:
        sch.reorder(*space, *reduce)
    parallelize(sch, space, block.work)
