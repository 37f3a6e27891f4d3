"""ATen operators whose own translation by TVM fails or would be slow."""

from __future__ import annotations

import math
import operator

import numpy as np
import torch
from torch import fx
from tvm import relax, te, tirx

from gfcompile.codegen import kernels
from gfcompile.codegen.converters.importer import Converter, Importer, dtype_of, emit
from gfcompile.graph.shapes import shape_of

FOLDED = 1024  # elements: what TVM's FoldConstant makes a literal of, at most


def _maximum_over(node: fx.Node, to: Importer) -> relax.Var:
    x, *rest = node.args
    axes = list(rest[0]) if rest and rest[0] else None
    keep = bool(rest[1]) if len(rest) > 1 else False
    reduce = relax.op.max if "amax" in node.target.__name__ else relax.op.min
    return to.block_builder.emit(reduce(to.env[x], axes, keep))


def _full(node: fx.Node, to: Importer) -> relax.Var:
    """Small ones are literals at once: TVM would fold each of them by compiling and running a kernel.

    Larger ones it leaves alone, to be filled where they are read; on infinities its own fill fails.
    """
    value = node.args[1]
    if isinstance(value, fx.Node):
        return to._full(node) if node.target.__name__ == "full.default" else to._full_like(node)
    shape, dtype = shape_of(node), dtype_of(node)
    if not math.isfinite(value):
        return to.block_builder.emit(relax.op.broadcast_to(relax.const(value, dtype), shape))
    if math.prod(shape) <= FOLDED:
        return to.block_builder.emit(relax.const(np.full(shape, value, dtype), dtype))
    return to._full(node) if node.target.__name__ == "full.default" else to._full_like(node)


def _multiply(node: fx.Node, to: Importer) -> relax.Var:
    """A product of masks is where both hold."""
    if dtype_of(node) != "bool":
        return to._binary_op(relax.op.multiply, operator.mul)(node)
    x, y = (to.env[arg] for arg in node.args)
    return to.block_builder.emit(relax.op.logical_and(x, y))


def _where(node: fx.Node, to: Importer) -> relax.Var:
    """Both sides in the result's type."""
    condition, *sides = (to.env[arg] for arg in node.args)
    x, y = (relax.op.astype(side, dtype_of(node)) if side.ty.dtype != dtype_of(node) else side for side in sides)
    return to.block_builder.emit(relax.op.where(condition, x, y))


def _product_over(node: fx.Node, to: Importer) -> relax.Var:
    x, axis, *keep = node.args
    return to.block_builder.emit(relax.op.prod(to.env[x], [axis], bool(keep and keep[0])))


def _rounded_division(node: fx.Node, to: Importer) -> relax.Var:
    """Numbers take the result's type: TVM's own makes an int32 of them whatever they divide."""
    dtype = dtype_of(node)
    x, y = (
        relax.op.astype(to.env[arg], dtype) if isinstance(arg, fx.Node) else relax.const(arg, dtype)
        for arg in node.args[:2]
    )
    mode = node.kwargs.get("rounding_mode")
    if mode == "floor":
        return to.block_builder.emit(relax.op.floor_divide(x, y))
    quotient = relax.op.divide(x, y)
    return to.block_builder.emit(relax.op.trunc(quotient) if mode == "trunc" and "float" in dtype else quotient)


def _scatter_value(node: fx.Node, to: Importer) -> relax.Var:
    """scatter(base, axis, index, value) as a comparison: TVM's own is one serial loop, and the loss needs no more."""
    base, axis, index, value = node.args
    axis = int(axis) % len(shape_of(base))

    def scatter(data: te.Tensor, where: te.Tensor) -> te.Tensor:
        def element(*at: tirx.Var) -> tirx.PrimExpr:
            hit = where[(*at[:axis], 0, *at[axis + 1 :])] == at[axis].astype(where.dtype)
            return tirx.if_then_else(hit, tirx.const(value, data.dtype), data[at])

        return te.compute(data.shape, element, name="scatter")

    if shape_of(index)[axis] != 1:
        return to._scatter_value(node)
    return emit(to, scatter, to.env[base], to.env[index], name="scatter")


def _gather(node: fx.Node, to: Importer) -> relax.Var:
    """gather along an axis where the index has one entry, as the loss uses it."""
    data, axis, index = node.args[:3]
    axis = int(axis) % len(shape_of(data))

    def gather(values: te.Tensor, where: te.Tensor) -> te.Tensor:
        def element(*at: tirx.Var) -> tirx.PrimExpr:
            return values[(*at[:axis], where[at].astype("int32"), *at[axis + 1 :])]

        return te.compute(where.shape, element, name="gather")

    return emit(to, gather, to.env[data], to.env[index], name="gather")


def _transposed(node: fx.Node) -> tuple[fx.Node, bool]:
    """What a matrix is a transposition of, and whether an odd number of them lies between."""
    turned = False
    while node.target is torch.ops.aten.permute.default and list(node.args[1]) == [1, 0]:
        node, turned = node.args[0], not turned
    return node, turned


def _mm(node: fx.Node, to: Importer) -> relax.Var:
    (a, a_turned), (b, b_turned) = map(_transposed, node.args[-2:])
    return emit(to, kernels.matmul, to.env[a], to.env[b], a_turned, b_turned)


def _addmm(node: fx.Node, to: Importer) -> relax.Var:
    if node.kwargs:  # factors: rare, and TVM knows them
        return to._addmm(node)
    return to.block_builder.emit(relax.op.add(_mm(node, to), to.env[node.args[0]]))


def _permute(node: fx.Node, to: Importer) -> relax.Var:
    base, turned = _transposed(node)
    return to.env[base] if base is not node and not turned else to._permute(node)


def _select(node: fx.Node, to: Importer) -> relax.Var:
    """x[..., index, ...] at an index that is known: TVM's own is a gather, with a warning."""
    x, axis, index = node.args
    axis, index = axis % len(shape_of(x)), index % shape_of(x)[axis]

    def select(data: te.Tensor) -> te.Tensor:
        shape = (*data.shape[:axis], *data.shape[axis + 1 :])
        return te.compute(shape, lambda *at: data[(*at[:axis], index, *at[axis:])], name="select")

    return emit(to, select, to.env[x])


def _index_select(node: fx.Node, to: Importer) -> relax.Var:
    x, axis, index = node.args
    return to.block_builder.emit(relax.op.take(to.env[x], to.env[index], axis % len(shape_of(x)), mode="clip"))


def _embedding(node: fx.Node, to: Importer) -> relax.Var:
    weight, index = node.args[:2]
    return to.block_builder.emit(relax.op.take(to.env[weight], to.env[index], 0, mode="clip"))


CONVERTERS: dict[str, Converter] = {
    "mm.default": _mm,
    "addmm.default": _addmm,
    "permute.default": _permute,
    "select.int": _select,
    "index_select.default": _index_select,
    "embedding.default": _embedding,
    "amax.default": _maximum_over,
    "amin.default": _maximum_over,
    "full.default": _full,
    "full_like.default": _full,
    "mul.Tensor": _multiply,
    "where.self": _where,
    "prod.dim_int": _product_over,
    "div.Tensor_mode": _rounded_division,
    "div.Scalar_mode": _rounded_division,
    "scatter.value": _scatter_value,
    "gather.default": _gather,
}
