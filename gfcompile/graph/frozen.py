"""Which nodes of a step are the same in every step."""

from __future__ import annotations

import torch
from torch import fx

from gfcompile.step import Step

aten = torch.ops.aten
FILLS = {aten.full.default, aten.scalar_tensor.default}  # as good as constants, and smaller


def frozen_nodes(step: Step) -> set[fx.Node]:
    """Frozen inputs, and the calls that read nothing else."""
    frozen = {node for node, value in zip(step.placeholders(), step.inputs, strict=True) if step.is_frozen(value)}
    for node in step.body.graph.nodes:
        if node.op == "call_function" and all(arg in frozen for arg in node.all_input_nodes):
            frozen.add(node)
    return frozen
