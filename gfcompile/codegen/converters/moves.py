"""Values that are moved, resampled, put at indices, or drawn at random."""

from __future__ import annotations

from torch import fx
from tvm import relax

from gfcompile.codegen import kernels
from gfcompile.codegen.converters.importer import Converter, Importer, dtype_of, emit
from gfcompile.geometry.axis_maps import taps
from gfcompile.graph.shapes import shape_of


def _axis_map(node: fx.Node, to: Importer) -> relax.Var:
    x, axis, size, kind, settings, transposed = node.args
    length = shape_of(x)[axis]
    small, large = (size, length) if transposed else (length, size)
    found = taps(kind, tuple(settings), small, large, transposed)
    is_copy = found.weight.shape[1] == 1 and bool((found.weight == 1).all())
    tables = (relax.const(found.index), relax.const(found.weight))
    return emit(to, kernels.axis_map, to.env[x], *tables, axis, is_copy)


def _uniform(node: fx.Node, to: Importer) -> relax.Var:
    seed, stream, shape = node.args
    return emit(to, kernels.uniform, to.env[seed], stream, tuple(shape))


def _move(node: fx.Node, to: Importer) -> relax.Var:
    sources, table, shape = node.args
    return emit(to, kernels.move, [to.env[source] for source in sources], to.env[table], tuple(shape))


def _put(node: fx.Node, to: Importer) -> relax.Var:
    base, index, values, accumulate = node.args
    (rows, size), (_, count) = shape_of(base), shape_of(index)
    kernel = to.block_builder.add_func(kernels.put(rows, size, count, dtype_of(base), accumulate), "put")
    result = relax.TensorType((rows, size), dtype_of(base))
    operands = [to.env[base], to.env[index], to.env[values]]
    return to.block_builder.emit(relax.call_tir(kernel, operands, out_ty=result))


CONVERTERS: dict[str, Converter] = {
    "put.default": _put,
    "axis_map.default": _axis_map,
    "uniform.default": _uniform,
    "move.default": _move,
}
