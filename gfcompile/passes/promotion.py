"""PyTorch's rules of mixed types: the type in which an element-wise operator takes its operands."""

from __future__ import annotations

import torch
from torch import Tensor, fx

aten = torch.ops.aten
COMPARISONS = {
    compare
    for packet in (aten.eq, aten.ne, aten.lt, aten.le, aten.gt, aten.ge)
    for compare in (packet.Tensor, packet.Scalar)
}
OF_ANY_TYPE = {aten.where.self, aten._to_copy.default, aten.full_like.default}


def operand_type(node: fx.Node) -> torch.dtype | None:
    """The type that integers or masks among the operands must be cast to, or None where nothing is to be done.

    Whole numbers with a fraction give fractions, and masks are compared as numbers: lowering would round the fraction,
    and has no comparison of masks.
    """
    if torch.Tag.pointwise not in getattr(node.target, "tags", ()) or node.target in OF_ANY_TYPE:
        return None
    types = {arg.meta["val"].dtype for arg in node.all_input_nodes}
    if any(dtype.is_floating_point for dtype in types) or not isinstance(node.meta["val"], Tensor):
        return None
    wanted: torch.dtype = node.meta["val"].dtype
    if node.target in COMPARISONS:
        left, right = (arg.meta["val"] if isinstance(arg, fx.Node) else arg for arg in node.args[:2])
        wanted = torch.result_type(left, right)
        wanted = torch.int32 if wanted is torch.bool else wanted
    elif not wanted.is_floating_point:
        return None
    return wanted if types - {wanted} else None
