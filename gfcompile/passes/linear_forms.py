"""Gradients as linear forms over patch values: the algebra of the patch calculus (docs/method.md, section 3).

A full-resolution gradient is held as a sum of terms `field * U(value)`: a forward field (masks, a derivative, a
normalised map) times patch values spread over a grid. A tensor that is no such sum is its own value on the grid of
pixels, so that every gradient has a form, and forms add, scale, mask, slice and join without touching a pixel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from gfcompile.geometry.grids import Grid
from gfcompile.graph.nodes import emit
from gfcompile.graph.shapes import shape_of

aten = torch.ops.aten
Span = tuple[int, int]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Field:
    """A forward map: the product of masks, each with its wanted value, and at most one tensor."""

    masks: frozenset[tuple[fx.Node, bool]] = frozenset()
    tensor: fx.Node | None = None

    @property
    def factors(self) -> list[fx.Node]:
        """What is multiplied: the tensor, and the masks."""
        masks = sorted((mask for mask, _ in self.masks), key=lambda mask: mask.name)
        return masks if self.tensor is None else [*masks, self.tensor]


ONE = Field()


@dataclass(frozen=True)
class Term:
    """field * U(value) on the channels of `span`, zero on the others."""

    field: Field
    grid: Grid
    value: fx.Node
    span: Span


@dataclass(frozen=True)
class Form:
    """The sum of its terms; `shape` is that of the map [N, C, H, W]."""

    terms: tuple[Term, ...]
    shape: Shape

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns of the map."""
        return self.shape[2], self.shape[3]

    @property
    def is_plain(self) -> bool:
        """Every patch statistic of it is known from the values alone."""
        return all(term.field == ONE for term in self.terms)

    @property
    def has_pixels(self) -> bool:
        """Whether a term is a tensor at full resolution."""
        return any(term.grid.is_pixels for term in self.terms)


class Writer:
    """Emits nodes before the current one, equal ones once, and can take them back."""

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self.place: fx.Node | None = None
        self._written: dict[Any, fx.Node] = {}

    def at(self, place: fx.Node) -> None:
        """Write before this node from now on."""
        self.place = place

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        key = (target, _frozen(args), _frozen(tuple(sorted(kwargs.items()))))
        if key not in self._written:
            with self.graph.inserting_before(self.place):
                self._written[key] = emit(self.graph, target, *args, **kwargs)
        return self._written[key]

    def forget(self) -> None:
        """Let what was written stand, and reuse none of it: later nodes may go to earlier places."""
        self._written.clear()

    def discard(self) -> None:
        """Erase everything written: the last first, since later nodes read earlier ones."""
        for node in reversed(list(self._written.values())):
            self.graph.erase_node(node)
        self._written.clear()


def _frozen(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_frozen(item) for item in value)
    return (type(value), value) if isinstance(value, bool | int | float) else value


class Algebra:
    """Operations on forms. Values on the patch grid are computed by nodes that the writer emits."""

    def __init__(self, write: Writer) -> None:
        self.write = write

    def spread(self, value: fx.Node, grid: Grid, shape: Shape) -> Form:
        """U(value)."""
        return Form((Term(ONE, grid, value, (0, shape[1])),), shape)

    def opaque(self, node: fx.Node) -> Form:
        """A tensor that must exist: its own value on the grid of pixels."""
        shape = shape_of(node)
        return self.spread(node, Grid.pixels((shape[2], shape[3])), shape)

    def add(self, left: Form, right: Form, sign: int = 1) -> Form:
        """Terms with the same field and grid become one."""
        terms = list(left.terms)
        for term in right.terms:
            match = next((i for i, other in enumerate(terms) if _is_alike(term, other)), None)
            if match is None:
                terms.append(term if sign > 0 else replace(term, value=self.write(aten.neg.default, term.value)))
            else:
                join = aten.add.Tensor if sign > 0 else aten.sub.Tensor
                terms[match] = replace(terms[match], value=self.write(join, terms[match].value, term.value))
        return Form(tuple(terms), left.shape)

    def scale(self, form: Form, factor: float, divide: bool = False) -> Form:
        """The form times a number."""
        if factor == 1:
            return form
        target = aten.div.Scalar if divide else aten.mul.Scalar
        return self._with_values(form, lambda term: self.write(target, term.value, factor))

    def times_constant(self, form: Form, constant: fx.Node, divide: bool = False) -> Form:
        """Times what is constant over the map, [N or 1, C or 1, 1, 1]: M(c*g) = c*M(g)."""
        target = aten.div.Tensor if divide else aten.mul.Tensor
        return self._with_values(
            form, lambda term: self.write(target, term.value, self.channels(constant, term.span, form.shape[1]))
        )

    def times_field(self, form: Form, tensor: fx.Node) -> Form:
        """Times a forward map: it joins each term's field."""
        terms = []
        for term in form.terms:
            part = self.channels(tensor, term.span, form.shape[1])
            product = part if term.field.tensor is None else self.write(aten.mul.Tensor, term.field.tensor, part)
            terms.append(replace(term, field=Field(term.field.masks, product)))
        return Form(tuple(terms), form.shape)

    def masked(self, form: Form, mask: fx.Node, wanted: bool) -> Form:
        """Zero where the mask has not the wanted value."""
        terms = []
        for term in form.terms:
            part = self.channels(mask, term.span, form.shape[1])
            if (part, not wanted) not in term.field.masks:
                terms.append(replace(term, field=Field(term.field.masks | {(part, wanted)}, term.field.tensor)))
        return Form(tuple(terms), form.shape)

    def choose(self, mask: fx.Node, yes: Form, no: Form) -> Form:
        """where(mask, yes, no). Branches that differ in their fields alone become one field: one derivative, not two.

        Branches that differ in their values alone become no + mask*(yes - no): one mask statistic, not two.
        """
        if not yes.terms or not no.terms:
            return self.masked(yes, mask, True) if yes.terms else self.masked(no, mask, False)
        if [_place(term) for term in yes.terms] == [_place(term) for term in no.terms]:
            pairs = zip(yes.terms, no.terms, strict=True)
            return Form(tuple(self._chosen(mask, a, b, yes.shape) for a, b in pairs), yes.shape)
        if len(yes.terms) == len(no.terms) and all(map(_is_alike, yes.terms, no.terms)):
            return self.add(no, self.masked(self.add(yes, no, -1), mask, True))
        return self.add(self.masked(yes, mask, True), self.masked(no, mask, False))

    def _chosen(self, mask: fx.Node, yes: Term, no: Term, shape: Shape) -> Term:
        if yes.field == no.field:
            return yes
        part = self.channels(mask, yes.span, shape[1])
        chosen = self.write(aten.where.self, part, self._as_tensor(yes.field), self._as_tensor(no.field))
        return replace(yes, field=Field(tensor=chosen))

    def _as_tensor(self, field: Field) -> fx.Node:
        return self.apply_masks(field, self._scalar(1.0) if field.tensor is None else field.tensor)

    def _scalar(self, value: float) -> fx.Node:
        return self.write(aten.scalar_tensor.default, value, dtype=torch.float32)

    def cut(self, form: Form, start: int, stop: int) -> Form:
        """Channels [start, stop)."""
        terms = []
        for term in form.terms:
            low, high = max(start, term.span[0]), min(stop, term.span[1])
            if low < high:
                part = (low - term.span[0], high - term.span[0])
                width = term.span[1] - term.span[0]
                field = Field(
                    frozenset((self.channels(mask, part, width), wanted) for mask, wanted in term.field.masks),
                    None if term.field.tensor is None else self.channels(term.field.tensor, part, width),
                )
                value = self.channels(term.value, part, width)
                terms.append(Term(field, term.grid, value, (low - start, high - start)))
        return Form(tuple(terms), (form.shape[0], stop - start, *form.shape[2:]))

    def join(self, forms: Sequence[Form]) -> Form:
        """Side by side along the channels."""
        terms, offset = [], 0
        for form in forms:
            terms += [replace(term, span=(term.span[0] + offset, term.span[1] + offset)) for term in form.terms]
            offset += form.shape[1]
        first = forms[0].shape
        return Form(tuple(terms), (first[0], offset, *first[2:]))

    def place(self, form: Form, start: int, channels: int) -> Form:
        """Behind `start` channels of zeros, in a map of `channels`."""
        shape = (form.shape[0], channels, *form.shape[2:])
        return Form(tuple(replace(t, span=(t.span[0] + start, t.span[1] + start)) for t in form.terms), shape)

    def channels(self, node: fx.Node, span: Span, width: int) -> fx.Node:
        """The span of a node's channels; what is the same for every channel stays."""
        if span == (0, width) or shape_of(node)[1] == 1:
            return node
        return self.write(aten.slice.Tensor, node, 1, *span)

    def apply_masks(self, field: Field, value: fx.Node) -> fx.Node:
        """The value where every mask of the field has its wanted value, zero elsewhere."""
        for mask, wanted in sorted(field.masks, key=lambda item: item[0].name):
            branches = (value, self._scalar(0.0)) if wanted else (self._scalar(0.0), value)
            value = self.write(aten.where.self, mask, *branches)
        return value

    def product(self, field: Field, value: fx.Node) -> fx.Node:
        """field * value at full resolution."""
        if field.tensor is not None:
            value = self.write(aten.mul.Tensor, value, field.tensor)
        return self.apply_masks(field, value)

    def _with_values(self, form: Form, change: Callable[[Term], fx.Node]) -> Form:
        return Form(tuple(replace(term, value=change(term)) for term in form.terms), form.shape)


def _is_alike(one: Term, other: Term) -> bool:
    return (one.field, one.grid.key, one.span) == (other.field, other.grid.key, other.span)


def _place(term: Term) -> tuple[Any, ...]:
    return (term.grid.key, term.value, term.span)
