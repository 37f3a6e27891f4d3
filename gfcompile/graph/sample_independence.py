"""Which operators keep the samples of a batch apart.

A value keeps them apart if its elements, in order, are as many equal blocks as there are samples, and each block is
the same function of its own sample alone: of no other sample, and not of its place in the batch. An image batch
[N, H, W, C] does, and so do [N * H * W, C] and [N * heads, T, T] after a reshape. `why_not_apart` has a rule an
operator; one that has none is refused, so what is said to keep samples apart does.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, fx

from gfcompile.graph.frozen import FILLS
from gfcompile.graph.nodes import operator_name
from gfcompile.graph.shapes import shape_of
from gfcompile.ops import gf
from gfcompile.step import Step

aten = torch.ops.aten
MIXES = "mixes the samples of a batch"


class Samples:
    """Asked about the nodes of a step in order; every operand is constant or has been found to keep samples apart."""

    def __init__(self, step: Step, batch: int) -> None:
        self.batch = batch
        self.apart: set[fx.Node] = set()
        self.constants = {
            node: step.tensors.get(value.name) for node, value in zip(step.placeholders(), step.inputs, strict=True)
        }

    def why_not_apart(self, node: fx.Node) -> str | None:
        """A reason, or None: then the node is one of `apart` from now on."""
        if self.batch > 1:
            rule = _elementwise if _is_elementwise(node) else RULES.get(node.target)
            if rule is None:
                return f"'{operator_name(node)}' is not known to keep the samples of a batch apart"
            if not rule(self, node):
                return f"'{operator_name(node)}' {MIXES}"
        self.apart.add(node)
        return None

    def is_led(self, node: Any) -> bool:
        """Whether its first axis is made of whole samples."""
        return node in self.apart and bool(shape_of(node)) and shape_of(node)[0] % self.batch == 0

    def is_uniform(self, node: fx.Node, result: Sequence[int]) -> bool:
        """Whether a constant operand is the same for every sample of a result of this shape."""
        shape = shape_of(node)
        if prod(shape) == 1 or node.target in FILLS:
            return True
        if result[0] % self.batch:
            return False  # the samples do not lie along the first axis
        if len(shape) < len(result) or shape[0] == 1:
            return True
        tensor = self.constants.get(node)
        if tensor is None or shape[0] % self.batch:
            return False
        blocks = tensor.reshape(self.batch, -1)
        return bool((blocks == blocks[0]).all())


Rule = Callable[[Samples, fx.Node], bool]


def _is_elementwise(node: fx.Node) -> bool:
    return torch.Tag.pointwise in getattr(node.target, "tags", ())


def _elementwise(samples: Samples, node: fx.Node) -> bool:
    shape = shape_of(node)
    for arg in node.all_input_nodes:
        if arg not in samples.apart:
            if not samples.is_uniform(arg, shape):
                return False
        elif shape_of(arg) != shape:  # broadcast: along other axes than the samples'
            whole = samples.is_led(arg) and len(shape_of(arg)) == len(shape) and shape_of(arg)[0] == shape[0]
            if not whole:
                return False
    return True


def _same_elements(samples: Samples, node: fx.Node) -> bool:
    """A reshape: whatever the axes, the elements stay in order."""
    return node.args[0] in samples.apart


def _sample_by_sample(samples: Samples, node: fx.Node) -> bool:
    """Images [N, ...] as argument 0, weights or none after them."""
    x, *others = node.all_input_nodes
    return samples.is_led(x) and x is node.args[0] and not samples.apart & set(others)


def _along(position: int, default: Sequence[int] | None = None) -> Rule:
    """The operator works along the axes of this argument: the first axis must not be one."""

    def rule(samples: Samples, node: fx.Node) -> bool:
        x, *others = node.all_input_nodes
        axes = node.args[position] if len(node.args) > position else default
        if axes is None or not samples.is_led(x) or samples.apart & set(others):
            return False
        rank = len(shape_of(x))
        listed = [axes] if isinstance(axes, int) else list(axes)
        return bool(listed) and all(axis % rank != 0 for axis in listed)

    return rule


def _permute(samples: Samples, node: fx.Node) -> bool:
    x, axes = node.args
    return samples.is_led(x) and axes[0] % len(axes) == 0


def _expand(samples: Samples, node: fx.Node) -> bool:
    x = node.args[0]
    same = len(shape_of(x)) == len(shape_of(node)) and shape_of(x)[0] == shape_of(node)[0]
    return samples.is_led(x) and same


def _cat(samples: Samples, node: fx.Node) -> bool:
    shape = shape_of(node)
    axis = int(node.args[1]) if len(node.args) > 1 else 0
    return axis % len(shape) != 0 and _all_led_or_uniform(samples, node)


def _pad(samples: Samples, node: fx.Node) -> bool:
    x, pads = node.args[:2]
    return samples.is_led(x) and len(pads) < 2 * len(shape_of(x))


def _rows_times_matrix(samples: Samples, node: fx.Node) -> bool:
    *bias, rows, matrix = (arg for arg in node.args if isinstance(arg, fx.Node))
    is_a_row = all(part not in samples.apart and len(shape_of(part)) == 1 for part in bias)
    return samples.is_led(rows) and matrix not in samples.apart and is_a_row


def _all_led_or_uniform(samples: Samples, node: fx.Node) -> bool:
    """Operands whose first axes lie on each other: parts to be joined, or a matrix for each."""
    shape = shape_of(node)
    return all(
        samples.is_led(arg) if arg in samples.apart else samples.is_uniform(arg, shape) for arg in node.all_input_nodes
    )


def _gather(samples: Samples, node: fx.Node) -> bool:
    x, axis, index = node.args[:3]
    same_samples = _all_led_or_uniform(samples, node) and shape_of(x)[0] == shape_of(index)[0]
    return same_samples and axis % len(shape_of(x)) != 0


def _move(samples: Samples, node: fx.Node) -> bool:
    """A table for fewer elements than there are moves every sample alike."""
    sources, table, _ = node.args
    moved_alike = node.meta["val"].numel() // shape_of(table)[0]
    return table not in samples.apart and moved_alike % samples.batch == 0 and samples.apart.issuperset(sources)


REDUCTIONS = (
    aten.mean.dim, aten.sum.dim_IntList, aten.amax.default, aten.amin.default, aten.prod.dim_int, aten.any.dim,
    aten.var.correction, aten.var_mean.correction, aten.argmax.default, aten.argmin.default, aten.logsumexp.default,
    aten._softmax.default, aten._log_softmax.default, aten.cumsum.default, aten.flip.default, aten.select.int,
)  # fmt: skip
RULES: dict[Any, Rule] = {
    operator.getitem: _same_elements,
    aten.reshape.default: _same_elements,
    aten.unsqueeze.default: _same_elements,
    aten.squeeze.dim: _same_elements,
    aten.squeeze.dims: _same_elements,
    aten._to_copy.default: _same_elements,
    aten.alias.default: _same_elements,
    aten.full_like.default: _same_elements,
    aten.permute.default: _permute,
    aten.expand.default: _expand,
    aten.cat.default: _cat,
    aten.constant_pad_nd.default: _pad,
    aten.mm.default: _rows_times_matrix,
    aten.addmm.default: _rows_times_matrix,
    aten.bmm.default: _all_led_or_uniform,
    aten.gather.default: _gather,
    aten.slice.Tensor: _along(1, (0,)),
    aten.index_select.default: _along(1),
    aten.split_with_sizes.default: _along(2, (0,)),
    gf.axis_map.default: _along(1),
    gf.move.default: _move,
    **dict.fromkeys(REDUCTIONS, _along(1)),
    **dict.fromkeys(
        (
            gf.conv2d_nhwc.default,
            gf.winograd_conv2d_nhwc.default,
            gf.max_pool2d_nhwc.default,
            gf.max_pool2d_values_nhwc.default,
            gf.pool_positions_nhwc.default,
            gf.avg_pool2d_nhwc.default,
            gf.adaptive_avg_pool2d_nhwc.default,
            gf.patch_sum.default,
            gf.patch_mean.default,
            aten.convolution.default,
            aten.avg_pool2d.default,
            aten._adaptive_avg_pool2d.default,
            aten.max_pool2d_with_indices.default,
        ),
        _sample_by_sample,
    ),
}


def bytes_a_sample(tensor: Tensor, batch: int, float_bytes: int = 4) -> int:
    """What a sample's block of the value takes; numbers that are no floats stay as they are."""
    width = float_bytes if tensor.is_floating_point() else tensor.element_size()
    return int(tensor.numel()) // batch * width
