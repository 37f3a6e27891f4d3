"""Statistics of patches, and masks as bits."""

from __future__ import annotations

from torch import fx
from tvm import relax

from gfcompile.codegen import kernels
from gfcompile.codegen.converters.importer import Converter, Importer, dtype_of, emit, pair, windows


def _patch_sum(node: fx.Node, to: Importer) -> relax.Var:
    return emit(to, kernels.patch_sum, to.env[node.args[0]], windows(node.args[1]), windows(node.args[2]))


def _patch_mean(node: fx.Node, to: Importer) -> relax.Var:
    return emit(to, kernels.patch_mean, to.env[node.args[0]], windows(node.args[1]), windows(node.args[2]))


def _patch_broadcast(node: fx.Node, to: Importer) -> relax.Var:
    q, rows, cols, size, *_ = node.args
    return emit(to, kernels.patch_broadcast, to.env[q], windows(rows), windows(cols), pair(size))


def _mask_count(node: fx.Node, to: Importer) -> relax.Var:
    masks, wanted, rows, cols = node.args
    operands = ([to.env[mask] for mask in masks], list(wanted), windows(rows), windows(cols))
    return emit(to, kernels.mask_count, *operands, dtype_of(node))


def _packed_mask_count(node: fx.Node, to: Importer) -> relax.Var:
    bits, wanted, shape, rows, cols = node.args
    operands = ([to.env[packed] for packed in bits], list(wanted), tuple(shape), windows(rows), windows(cols))
    return emit(to, kernels.packed_mask_count, *operands, dtype_of(node))


def _pack_mask(node: fx.Node, to: Importer) -> relax.Var:
    return emit(to, kernels.pack_mask, to.env[node.args[0]])


def _unpack_mask(node: fx.Node, to: Importer) -> relax.Var:
    return emit(to, kernels.unpack_mask, to.env[node.args[0]], tuple(node.args[1]))


def _scale_by_area(node: fx.Node, to: Importer) -> relax.Var:
    q, rows, cols, inverse = node.args
    return emit(to, kernels.scale_by_area, to.env[q], windows(rows), windows(cols), inverse)


def _regrid(node: fx.Node, to: Importer) -> relax.Var:
    return emit(to, kernels.regrid, to.env[node.args[0]], *(windows(axis) for axis in node.args[1:5]))


CONVERTERS: dict[str, Converter] = {
    "patch_sum.default": _patch_sum,
    "patch_mean.default": _patch_mean,
    "patch_broadcast.default": _patch_broadcast,
    "mask_count.default": _mask_count,
    "packed_mask_count.default": _packed_mask_count,
    "pack_mask.default": _pack_mask,
    "unpack_mask.default": _unpack_mask,
    "scale_by_area.default": _scale_by_area,
    "regrid.default": _regrid,
}
