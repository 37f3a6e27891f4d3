"""Patch grids over one map, and how two relate: what the patch calculus (docs/method.md, section 3) asks of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from gfcompile.geometry.convolution import Windows

NOWHERE = -1


@dataclass(frozen=True)
class Grid:
    """Windows over the rows and columns of an image of `size`."""

    rows: Windows
    cols: Windows
    size: tuple[int, int]

    @classmethod
    def of(cls, rows: list[int], cols: list[int], size: tuple[int, int]) -> Grid:
        """From the two lists that are arguments of the gf operators."""
        return cls(Windows(*rows), Windows(*cols), size)

    @classmethod
    def pixels(cls, size: tuple[int, int]) -> Grid:
        """The finest grid: every pixel its own patch."""
        return cls(Windows(size[0], 1, 0, 0, size[0]), Windows(size[1], 1, 0, 0, size[1]), size)

    @classmethod
    def whole(cls, size: tuple[int, int]) -> Grid:
        """The coarsest grid: one patch, as global pooling has it."""
        return cls(Windows(1, size[0], 0, 0, size[0]), Windows(1, size[1], 0, 0, size[1]), size)

    @property
    def axes(self) -> tuple[Windows, Windows]:
        """Rows, then columns."""
        return self.rows, self.cols

    @property
    def counts(self) -> tuple[int, int]:
        """Patches along rows and columns."""
        return self.rows.count, self.cols.count

    @property
    def lists(self) -> tuple[list[int], list[int]]:
        """The form in which the grid is an argument of the gf operators."""
        return self.rows.as_list(), self.cols.as_list()

    @cached_property
    def key(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Equal for grids that cut the image alike, however they are written."""
        return tuple(tuple(axis.spans()) for axis in self.axes)

    @property
    def is_pixels(self) -> bool:
        """Whether every patch is one pixel."""
        return self.key == Grid.pixels(self.size).key

    @property
    def is_whole(self) -> bool:
        """Whether one patch is the whole map."""
        return self.key == Grid.whole(self.size).key

    def refines(self, coarse: Grid) -> bool:
        """Whether each of its patches lies inside one patch of the other, or outside all of them."""
        return all(parents(own, other) is not None for own, other in zip(self.axes, coarse.axes, strict=True))

    def grouped_by(self, coarse: Grid) -> tuple[Windows, Windows] | None:
        """The coarse grid as windows over this one's patches; None where it does not group them regularly."""
        rows, cols = (grouping(own, other) for own, other in zip(self.axes, coarse.axes, strict=True))
        return None if rows is None or cols is None else (rows, cols)

    def enlarged(self, by: Sequence[int], size: tuple[int, int]) -> Grid:
        """The grid with every pixel a block, over an image of `size`: as pooling without overlap sees it."""
        rows, cols = (
            Windows(axis.count, axis.pitch * k, axis.origin * k, axis.lo * k, axis.hi * k)
            for axis, k in zip(self.axes, by, strict=True)
        )
        return Grid(rows, cols, size)

    def __str__(self) -> str:
        return f"{self.rows.count}x{self.cols.count} patches of {self.rows.pitch}x{self.cols.pitch}"


def parents(fine: Windows, coarse: Windows) -> list[int] | None:
    """For every fine patch the coarse one it lies in, NOWHERE for none; None if one straddles a border."""
    found = []
    for start, stop in fine.spans():
        meets = [index for index, (a, b) in enumerate(coarse.spans()) if max(a, start) < min(b, stop)]
        if not meets:
            found.append(NOWHERE)
        elif len(meets) == 1 and coarse.spans()[meets[0]][0] <= start and stop <= coarse.spans()[meets[0]][1]:
            found.append(meets[0])
        else:
            return None
    return found


def grouping(fine: Windows, coarse: Windows) -> Windows | None:
    """Windows over the fine patches' indices that gather, for every coarse patch, those that lie in it."""
    owner = parents(fine, coarse)
    if owner is None or coarse.pitch % fine.pitch or (coarse.origin - fine.origin) % fine.pitch:
        return None
    inside = [index for index, parent in enumerate(owner) if parent != NOWHERE]
    if not inside:
        return None
    origin = (coarse.origin - fine.origin) // fine.pitch
    windows = Windows(coarse.count, coarse.pitch // fine.pitch, origin, inside[0], inside[-1] + 1)
    gathered = [
        [index for index in range(start, stop) if owner[index] == patch]
        for patch, (start, stop) in enumerate(windows.spans())
    ]
    expected = [[index for index in inside if owner[index] == patch] for patch in range(coarse.count)]
    sizes = [stop - start for start, stop in windows.spans()]
    return windows if gathered == expected and sizes == [len(group) for group in expected] else None
