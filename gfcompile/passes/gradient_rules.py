"""How each operator of a backward pass acts on linear forms: a rule gives the result's form, or None for "not mine"."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import fx

from gfcompile.geometry.grids import Grid
from gfcompile.graph.shapes import shape_of
from gfcompile.ops import gf
from gfcompile.passes.linear_forms import Algebra, Form, Shape

aten = torch.ops.aten
ZEROS = {aten.scalar_tensor.default: 0, aten.full.default: 1, aten.full_like.default: 1}  # where the value stands


class Reading(Protocol):
    """What a rule may ask: the forms so far, and operands as forms, constants and fields."""

    algebra: Algebra
    forms: dict[fx.Node, Form]
    gradients: set[fx.Node]
    pooled: dict[fx.Node, str]

    def form_of(self, arg: Any, shape: Shape) -> Form | None:
        """An operand as a form, if it has one."""

    def constant(self, arg: Any) -> fx.Node | None:
        """An operand that is the same for every pixel."""

    def is_field(self, arg: Any, shape: Shape) -> bool:
        """Whether an operand is a forward map of this size."""
        ...


Rule = Callable[[Reading, fx.Node], Form | None]


def is_zero(arg: Any) -> bool:
    """A literal zero, or a tensor full of it."""
    if isinstance(arg, fx.Node) and arg.target in ZEROS:
        arg = arg.args[ZEROS[arg.target]]
    return isinstance(arg, int | float) and arg == 0


def _sum(reading: Reading, node: fx.Node, sign: int) -> Form | None:
    if node.kwargs.get("alpha", 1) != 1:
        return None
    left, right = (reading.form_of(arg, shape_of(node)) for arg in node.args[:2])
    return None if left is None or right is None else reading.algebra.add(left, right, sign)


def _product(reading: Reading, node: fx.Node) -> Form | None:
    shape = shape_of(node)
    for one, other in (node.args[:2], node.args[1::-1]):
        if isinstance(one, fx.Node) and one in reading.forms:
            return _times(reading, reading.forms[one], other, shape)
        constant = reading.constant(one)
        if constant is not None and one in reading.gradients and reading.is_field(other, shape):
            whole = reading.algebra.spread(constant, Grid.whole((shape[2], shape[3])), shape)
            return reading.algebra.times_field(whole, other)
    return None


def _times(reading: Reading, form: Form, factor: Any, shape: Shape) -> Form | None:
    if isinstance(factor, int | float):
        return reading.algebra.scale(form, factor)
    constant = reading.constant(factor)
    if constant is not None:
        return reading.algebra.times_constant(form, constant)
    if form.shape != shape or form.has_pixels or not reading.is_field(factor, shape):
        return None
    return reading.algebra.times_field(form, factor)


def _quotient(reading: Reading, node: fx.Node) -> Form | None:
    form, divisor = reading.forms.get(node.args[0]), node.args[1]
    if form is None:
        return None
    if isinstance(divisor, int | float):
        return reading.algebra.scale(form, divisor, divide=True)
    constant = reading.constant(divisor)
    return None if constant is None else reading.algebra.times_constant(form, constant, divide=True)


def _negation(reading: Reading, node: fx.Node) -> Form | None:
    form = reading.forms.get(node.args[0])
    return None if form is None else reading.algebra.scale(form, -1)


def _choice(reading: Reading, node: fx.Node) -> Form | None:
    mask, *branches = node.args
    shape = shape_of(node)
    yes, no = (reading.form_of(arg, shape) for arg in branches)
    if yes is None or no is None or yes.has_pixels or no.has_pixels or not reading.is_field(mask, shape):
        return None
    return reading.algebra.choose(mask, yes, no)


def _expansion(reading: Reading, node: fx.Node) -> Form | None:
    return reading.form_of(node.args[0], shape_of(node)) if shape_of(node.args[0])[-2:] == (1, 1) else None


def _broadcast(reading: Reading, node: fx.Node) -> Form:
    value, rows, cols, size = node.args
    return reading.algebra.spread(value, Grid.of(rows, cols, (size[0], size[1])), shape_of(node))


def _slice(reading: Reading, node: fx.Node) -> Form | None:
    source, axis, *bounds = node.args
    form = reading.forms.get(source)
    if form is None or axis != 1 or bounds[2:] not in ([], [1]):
        return None
    start, stop, _ = slice(*bounds[:2]).indices(form.shape[1])
    return reading.algebra.cut(form, start, stop)


def _slice_scatter(reading: Reading, node: fx.Node) -> Form | None:
    base, source, axis, *bounds = node.args
    form = reading.forms.get(source)
    if form is None or not is_zero(base) or axis != 1 or bounds[2:] not in ([], [1]):
        return None
    start, _, _ = slice(*bounds[:2]).indices(shape_of(node)[1])
    return reading.algebra.place(form, start, shape_of(node)[1])


def _concatenation(reading: Reading, node: fx.Node) -> Form | None:
    if (node.args[1] if len(node.args) > 1 else 0) != 1:
        return None
    forms = [reading.form_of(part, shape_of(part)) for part in node.args[0]]
    return None if any(form is None for form in forms) else reading.algebra.join([form for form in forms if form])


def _average_pooling(reading: Reading, node: fx.Node) -> Form | None:
    """The gradient of pooling over windows that neither overlap nor overhang: pooled values on that grid."""
    pooled, full = shape_of(node.args[0]), shape_of(node)
    if node.target is aten._adaptive_avg_pool2d_backward.default:
        kernel = [whole // part for whole, part in zip(full[2:], pooled[2:], strict=True)]
        if any(whole % part for whole, part in zip(full[2:], pooled[2:], strict=True)):
            return None
        divisor = kernel[0] * kernel[1]
    else:
        kernel, stride, padding, _, _, override = node.args[2:8]
        overhangs = any(k * n > size for k, n, size in zip(kernel, pooled[2:], full[2:], strict=True))
        if list(stride or kernel) != list(kernel) or any(padding) or overhangs:
            return None
        divisor = override or kernel[0] * kernel[1]
    form = reading.form_of(node.args[0], pooled)
    if form is None:
        return None
    if not form.is_plain:
        reading.pooled[node.args[0]] = "average pooling spreads it: its value on the pooled map is needed"
        form = reading.algebra.opaque(node.args[0])
    size = (full[2], full[3])
    terms = tuple(replace(term, grid=term.grid.enlarged(kernel, size)) for term in form.terms)
    return reading.algebra.scale(Form(terms, full), divisor, divide=True)


RULES: dict[Any, Rule] = {
    aten.add.Tensor: lambda reading, node: _sum(reading, node, 1),
    aten.sub.Tensor: lambda reading, node: _sum(reading, node, -1),
    aten.mul.Tensor: _product,
    aten.mul.Scalar: _product,
    aten.div.Tensor: _quotient,
    aten.div.Scalar: _quotient,
    aten.neg.default: _negation,
    aten.where.self: _choice,
    aten.expand.default: _expansion,
    gf.patch_broadcast.default: _broadcast,
    aten.slice.Tensor: _slice,
    aten.slice_scatter.default: _slice_scatter,
    aten.cat.default: _concatenation,
    aten.avg_pool2d_backward.default: _average_pooling,
    aten._adaptive_avg_pool2d_backward.default: _average_pooling,
}
GENERATORS = {gf.patch_broadcast.default, aten.expand.default}  # their operands are patch values already
