"""Optimizer updates and the scalars that they share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx
from tvm import relax

from gfcompile.codegen.converters.importer import Converter, Importer, emit
from gfcompile.codegen.kernels import update

OPAQUE = 8  # TVM's OpPatternKind


def _in_place(kernel: Callable[..., Any]) -> Converter:
    """Opaque to fusion: the driver lets these kernels write over their inputs, so nothing may be fused into them."""
    attributes = {"op_pattern": OPAQUE}

    def convert(node: fx.Node, to: Importer) -> relax.Var:
        operands, named = fx.map_arg(node.args, to.env.__getitem__), node.kwargs
        hint = kernel.__name__
        return to.block_builder.emit_te(kernel, *operands, primfunc_name_hint=hint, primfunc_attrs=attributes, **named)

    return convert


def _plain(kernel: Callable[..., Any]) -> Converter:
    """A kernel that takes what its operator takes."""
    return lambda node, to: emit(to, kernel, *fx.map_arg(node.args, to.env.__getitem__))


CONVERTERS: dict[str, Converter] = {
    "sgd_update.default": _in_place(update.sgd_update),
    "sgd_update_plain.default": _in_place(update.sgd_update_plain),
    "adam_update.default": _in_place(update.adam_update),
    "rmsprop_update.default": _in_place(update.rmsprop_update),
    "sgd_gain.default": _plain(update.sgd_gain),
    "bias_correction.default": _plain(update.bias_correction),
    "square_sum.default": _plain(update.square_sum),
    "clip_coefficient.default": _plain(update.clip_coefficient),
}
