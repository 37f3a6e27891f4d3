"""Compute in the forward pass what the backward needs of a tensor, so that the tensor itself dies there.

    x = relu(...) ; ... ; loss ; gf.patch_sum(x) ; x <= 0   ==>   x = relu(...) ; gf.patch_sum(x) ; x <= 0 ; ... ; loss

Exact: only the order changes. A mask (one byte an element) moves only where that lets its source (four) die; a source
that some other backward node reads stays, and so does its mask.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import fx

from gfcompile.ops import gf
from gfcompile.passes.base import Found, Pass
from gfcompile.step import Role, Step

SCALE = torch.ops.aten.mul.Scalar


class Hoist(Pass):
    """Move patch sums with the scaling behind them, then masks, up to their producer."""

    name: ClassVar[str] = "hoist"

    def find(self, step: Step) -> Found:
        nodes = list(step.body.graph.nodes)
        position = {node: index for index, node in enumerate(nodes)}
        loss = step.results()[[value.role for value in step.outputs].index(Role.LOSS)]
        boundary = position[loss]
        backward = {node for node in nodes if position[node] > boundary}
        for node in nodes:
            if node.target is gf.patch_sum.default and not _is_hoisted(node, _place(node, position)):
                yield node
        yield from _masks(nodes, backward)

    def rewrite(self, step: Step, site: fx.Node) -> None:
        position = {node: index for index, node in enumerate(step.body.graph.nodes)}
        _place(site, position).append(site)
        if site.target is gf.patch_sum.default:
            for user in [user for user in site.users if user.target is SCALE]:
                site.append(user)


def _masks(nodes: list[fx.Node], backward: set[fx.Node]) -> list[fx.Node]:
    """Backward nodes with a boolean result, made from forward tensors that nothing else in the backward reads."""
    candidates: set[fx.Node] = set()
    for node in nodes:
        if node in backward and _is_mask(node):
            sources = node.all_input_nodes
            if all(arg in candidates or (arg not in backward and arg.op == "call_function") for arg in sources):
                candidates.add(node)

    def stays(arg: fx.Node) -> bool:
        readers = {user for user in arg.users if user in backward and not _needs_only_the_shape(user, arg)}
        return not all(user in candidates or user.target is gf.patch_sum.default for user in readers)

    while kept := {
        node
        for node in candidates
        if any(arg in backward and arg not in candidates for arg in node.all_input_nodes)
        or any(arg not in backward and stays(arg) for arg in node.all_input_nodes)
    }:
        candidates -= kept
    return [node for node in nodes if node in candidates]


def _needs_only_the_shape(user: fx.Node, arg: fx.Node) -> bool:
    """A convolution's backward without its weight gradient takes the input for its shape."""
    if user.target is not torch.ops.aten.convolution_backward.default:
        return False
    gy, _, weight, *_, output_mask = user.args
    return not output_mask[1] and arg is not gy and arg is not weight


def _is_mask(node: fx.Node) -> bool:
    value = node.meta.get("val")
    is_boolean = isinstance(value, torch.Tensor) and value.dtype is torch.bool and value.dim() > 1
    return bool(is_boolean and node.all_input_nodes and torch.Tag.pointwise in getattr(node.target, "tags", ()))


def _is_hoisted(node: fx.Node, place: fx.Node) -> bool:
    """Right behind its producer, other hoisted nodes between them aside."""
    before = node.prev
    while before is not place and (before.target in (gf.patch_sum.default, SCALE) or _is_mask(before)):
        before = before.prev
    return before is place


def _place(node: fx.Node, position: dict[fx.Node, int]) -> fx.Node:
    """The last node that must come before: the latest producer, or the last placeholder."""
    source = max(node.all_input_nodes, key=position.__getitem__)
    while source.op == "placeholder" and source.next.op == "placeholder":
        source = source.next
    return source
