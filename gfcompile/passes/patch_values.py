"""Means and sums of a form without its pixels: the identities of docs/method.md, section 3, written into the graph."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import torch
from torch import fx

from gfcompile.geometry.grids import Grid
from gfcompile.graph.shapes import shape_of
from gfcompile.ops import gf
from gfcompile.passes.linear_forms import ONE, Algebra, Field, Form, Span, Term

aten = torch.ops.aten


def why_not(form: Form, grid: Grid) -> str | None:
    """Why the form has no mean on the grid, or None: the grids of its terms must refine it or be refined by it."""
    for term in form.terms:
        if not (term.grid.key == grid.key or grid.refines(term.grid) or term.grid.grouped_by(grid)):
            return f"{term.grid} and {grid} of one {grid.size[0]}x{grid.size[1]} map do not nest"
    return None


class Evaluation:
    """Writes the patch values of forms, and the statistics of forward fields that they need."""

    def __init__(self, algebra: Algebra) -> None:
        self.algebra, self.write = algebra, algebra.write

    def mean(self, form: Form, grid: Grid) -> fx.Node:
        """M(form) on the grid, [N, C, P, Q]."""
        spans = sorted({term.span for term in form.terms})
        parts = {span: self._mean([term for term in form.terms if term.span == span], grid) for span in spans}
        shape = (form.shape[0], form.shape[1], *grid.counts)
        return self._assembled(parts, shape)

    def total(self, form: Form, axes: list[int], keep: bool) -> fx.Node:
        """The sum over rows, columns and whatever else `axes` names."""
        parts: dict[Span, fx.Node] = {}
        for term in form.terms:
            width = term.span[1] - term.span[0]
            if term.grid.is_pixels:
                sums = self.algebra.product(term.field, term.value)
            elif term.field == ONE:
                value = self._filled(term.value, (form.shape[0], width, *term.grid.counts))
                sums = self.write(gf.scale_by_area.default, value, *term.grid.lists, False)
            else:
                sums = self.write(aten.mul.Tensor, term.value, self.statistic(term.field, term.grid))
            sums = self._filled(sums, (form.shape[0], width, *term.grid.counts))
            total = self.write(aten.sum.dim_IntList, sums, axes, True)
            parts[term.span] = self._plus(parts.get(term.span), total)
        batch = 1 if 0 in axes else form.shape[0]
        if parts and 1 in axes:
            result = functools.reduce(self._plus, parts.values())
        else:
            result = self._assembled(parts, (batch, 1 if 1 in axes else form.shape[1], 1, 1))
        return result if keep else self.write(aten.reshape.default, result, [n for a, n in _left(result, axes)])

    def statistic(self, field: Field, grid: Grid) -> fx.Node:
        """S(field): counts of masks, sums of anything else; of the unsliced map where all is sliced alike."""
        base, cut = _unsliced(field)
        if base.tensor is None:
            masks = sorted(base.masks, key=lambda item: item[0].name)
            wanted = [value for _, value in masks]
            count = self.write(gf.mask_count.default, [mask for mask, _ in masks], wanted, *grid.lists)
            sums = self.write(aten._to_copy.default, count, dtype=torch.float32)
        else:
            sums = self.write(gf.patch_sum.default, self.algebra.apply_masks(base, base.tensor), *grid.lists)
        return sums if cut is None else self.write(aten.slice.Tensor, sums, 1, *cut)

    def _mean(self, terms: list[Term], grid: Grid) -> fx.Node:
        """Of terms with one span: those that need no division, and the sums of the others divided at once."""
        means: fx.Node | None = None
        sums: fx.Node | None = None
        for term in terms:
            if term.grid.key == grid.key or grid.refines(term.grid):
                value = self._on(term, grid)
                if term.field == ONE:
                    means = self._plus(means, value)
                else:
                    product = self.write(aten.mul.Tensor, value, self.statistic(term.field, grid))
                    sums = self._plus(sums, product)
            elif term.grid.is_pixels:
                product = self.algebra.product(term.field, term.value)
                means = self._plus(means, self.write(gf.patch_mean.default, product, *grid.lists))
            else:
                sums = self._plus(sums, self._gathered(term, grid))
        if sums is not None:
            means = self._plus(means, self.write(gf.scale_by_area.default, sums, *grid.lists, True))
        assert means is not None
        return means

    def _on(self, term: Term, grid: Grid) -> fx.Node:
        """The term's values on a grid that refines its own: q[parent]. A single patch broadcasts by itself."""
        if term.grid.key == grid.key or (term.grid.is_whole and shape_of(term.value)[2:] == (1, 1)):
            return term.value
        return self.write(gf.regrid.default, term.value, *term.grid.lists, *grid.lists)

    def _gathered(self, term: Term, grid: Grid) -> fx.Node:
        """Sums over a grid that the term's own refines: of what its patches hold."""
        windows = term.grid.grouped_by(grid)
        assert windows is not None
        if term.field == ONE:
            held = self.write(gf.scale_by_area.default, term.value, *term.grid.lists, False)
        else:
            held = self.write(aten.mul.Tensor, term.value, self.statistic(term.field, term.grid))
        return self.write(gf.patch_sum.default, held, windows[0].as_list(), windows[1].as_list())

    def _plus(self, left: fx.Node | None, right: fx.Node) -> fx.Node:
        return right if left is None else self.write(aten.add.Tensor, left, right)

    def _filled(self, value: fx.Node, shape: tuple[int, ...]) -> fx.Node:
        """Broadcast to the whole shape."""
        return value if shape_of(value) == shape else self.write(aten.expand.default, value, list(shape))

    def _assembled(self, parts: dict[Span, fx.Node], shape: tuple[int, ...]) -> fx.Node:
        """Values of channel spans as one tensor, zero where no span reaches."""
        borders = sorted({0, shape[1], *(border for span in parts for border in span)})
        pieces = []
        for start, stop in itertools.pairwise(borders):
            piece: fx.Node | None = None
            for (low, high), value in parts.items():
                if low <= start and stop <= high:
                    part = self.algebra.channels(value, (start - low, stop - low), high - low)
                    piece = self._plus(piece, part)
            size = (shape[0], stop - start, *shape[2:])
            if piece is None:
                piece = self.write(aten.full.default, list(size), 0.0, dtype=torch.float32)
            pieces.append(self._filled(piece, size))
        return pieces[0] if len(pieces) == 1 else self.write(aten.cat.default, pieces, 1)


def _left(node: fx.Node, axes: list[int]) -> list[tuple[int, int]]:
    return [(axis, size) for axis, size in enumerate(shape_of(node)) if axis not in axes]


def _unsliced(field: Field) -> tuple[Field, tuple[int, int] | None]:
    """The field before a channel slice that all its factors share, and the slice."""
    cuts: set[Any] = set()
    for factor in field.factors:
        is_cut = factor.target is aten.slice.Tensor and factor.args[1] == 1 and factor.args[4:] in ((), (1,))
        cuts.add((tuple(factor.args[2:4]), shape_of(factor.args[0])[1]) if is_cut else None)
    if len(cuts) != 1 or None in cuts:
        return field, None
    ((cut, _),) = cuts
    masks = frozenset((mask.args[0], wanted) for mask, wanted in field.masks)
    tensor = None if field.tensor is None else field.tensor.args[0]
    return Field(masks, tensor), cut
