"""Drawn input channels of a convolution, and the weights that they touch."""

from __future__ import annotations

from torch import fx
from tvm import relax

from gfcompile.codegen import kernels
from gfcompile.codegen.converters.importer import Converter, Importer, dtype_of, emit
from gfcompile.errors import ContractError
from gfcompile.graph.shapes import shape_of


def _take_channels(node: fx.Node, to: Importer) -> relax.Var:
    x, channels, inputs, outputs = node.args
    return emit(to, kernels.take_channels, to.env[x], to.env[channels], inputs, outputs)


def _take_weights(node: fx.Node, to: Importer) -> relax.Var:
    w, channels, shape, groups = node.args
    return emit(to, kernels.take_weights, to.env[w], to.env[channels], tuple(shape), groups)


def _spread_weights(node: fx.Node, to: Importer) -> relax.Var:
    values, channels, shape, groups = node.args
    return emit(to, kernels.spread_weights, to.env[values], to.env[channels], tuple(shape), groups)


def _put_weights(node: fx.Node, to: Importer) -> relax.Var:
    """Writes nothing but the drawn weights, so it must run in place: the driver lets it."""
    w, values, channels, shape, groups = node.args
    if w.op != "placeholder":
        raise ContractError(f"'{w.name}' is no state that '{node.name}' could be written into")
    kernel = kernels.put_weights(tuple(shape), groups, shape_of(channels)[0])
    made = to.block_builder.add_func(kernel, kernels.put_weights.__name__)
    result = relax.TensorType(shape_of(node), dtype_of(node))
    return to.block_builder.emit(relax.call_tir(made, [to.env[w], to.env[values], to.env[channels]], out_ty=result))


CONVERTERS: dict[str, Converter] = {
    "take_channels.default": _take_channels,
    "take_weights.default": _take_weights,
    "put_weights.default": _put_weights,
    "spread_weights.default": _spread_weights,
}
