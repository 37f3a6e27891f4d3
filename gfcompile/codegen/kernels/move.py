"""Values moved by a table that is known at compile time."""

from functools import reduce
from typing import Any

from tvm import te, tirx


def move(sources: list[te.Tensor], table: te.Tensor, shape: tuple[int, ...]) -> te.Tensor:
    """ops/moves.py: element i of a sample is the sum of the sources' elements that row i of the table names."""
    rows, taps = (int(extent) for extent in table.shape)
    samples = _count(shape) // rows

    def value(*at: Any) -> Any:
        position: Any = tirx.const(0, "int32")
        for index, size in zip(at, shape, strict=True):
            position = position * size + index
        sample, row = (position // rows, position % rows) if samples > 1 else (0, position)
        return reduce(lambda a, b: a + b, [_load(sources, sample, table[row, k], samples) for k in range(taps)])

    return te.compute(shape, value, name="move")


def _load(sources: list[te.Tensor], sample: Any, entry: Any, samples: int) -> Any:
    result: Any = tirx.const(0, sources[0].dtype)
    start = 1
    for source in sources:
        extents = [int(extent) for extent in source.shape]
        size = _count(extents) // samples
        if size == 0:
            continue
        # clamped, since a load may be hoisted out of its condition
        inside = tirx.max(tirx.min(entry - start, size - 1), 0)
        load = source[_unravel(sample * size + inside, extents)]
        result = tirx.Select(tirx.all(entry >= start, entry < start + size), load, result)
        start += size
    return result


def _unravel(position: Any, extents: list[int]) -> tuple[Any, ...]:
    index: list[Any] = []
    for size in reversed(extents):
        index.insert(0, position % size)
        position = position // size
    return tuple(index)


def _count(shape: Any) -> int:
    count = 1
    for size in shape:
        count *= int(size)
    return count
