"""What crosses from the forward to the backward pass: shared by the passes that make it small."""

from __future__ import annotations

from collections.abc import Container

import torch
from torch import fx

from gfcompile.ops import gf
from gfcompile.step import Step

aten = torch.ops.aten
STATISTICS = {gf.patch_sum.default, gf.mask_count.default, gf.pack_mask.default, gf.take_channels.default}


VIEWS = (aten.permute.default, aten.reshape.default, aten.unsqueeze.default, aten.expand.default)


def is_view_of_input(node: fx.Node) -> bool:
    """A reshaped parameter or input: it costs nothing to make it again after the loss."""
    return node.target in VIEWS and node.args[0].op == "placeholder"


class Crossing:
    """The graph cut at the loss. *Forward work* is what stands after the loss and does not depend on it."""

    def __init__(self, step: Step) -> None:
        nodes = list(step.body.graph.nodes)
        self.position = {node: index for index, node in enumerate(nodes)}
        self.loss = step.loss()
        behind = nodes[self.position[self.loss] + 1 :]
        self.gradients: dict[fx.Node, None] = {}
        self.forward_work: dict[fx.Node, None] = {}
        for node in behind:
            if node.op == "call_function":
                depends = any(arg is self.loss or arg in self.gradients for arg in node.all_input_nodes)
                (self.gradients if depends else self.forward_work)[node] = None

    def kept(self, dying: Container[fx.Node] = frozenset()) -> set[fx.Node]:
        """The forward values that must live on after the loss, statistics and what is in `dying` aside."""
        kept: set[fx.Node] = set()
        for node in reversed(self.position):
            if node in self.gradients:
                continue
            for user in node.users:
                is_read = user in self.gradients and not _needs_only_the_shape(user, node)
                passes_on = user in kept and user in self.forward_work and user not in dying
                if is_read or (passes_on and user.target not in STATISTICS):
                    kept.add(node)
                    break
        return kept

    def is_behind(self, node: fx.Node) -> bool:
        """Whether it runs after the loss."""
        return node in self.gradients or node in self.forward_work

    def saved(self) -> list[fx.Node]:
        """Values computed before the loss and read after it, in order; views of inputs are made again instead."""
        return [
            node
            for node in self.position
            if node.op == "call_function"
            and self.position[node] < self.position[self.loss]
            and any(self.is_behind(user) for user in node.users)
            and not is_view_of_input(node)
        ]

    def sources(self, node: fx.Node) -> list[fx.Node]:
        """The values computed before the loss from which forward work is made."""
        found: dict[fx.Node, None] = {}
        seen, waiting = set[fx.Node](), [*reversed(node.all_input_nodes)]
        while waiting:
            arg = waiting.pop()
            if arg not in self.forward_work:
                if arg.op == "call_function":
                    found[arg] = None
            elif arg not in seen:
                seen.add(arg)
                waiting += reversed(arg.all_input_nodes)
        return list(found)


def _needs_only_the_shape(user: fx.Node, arg: fx.Node) -> bool:
    """A convolution's backward without its weight gradient takes the input for its shape."""
    if user.target is not aten.convolution_backward.default:
        return user.target in (aten.full_like.default, aten.zeros_like.default)
    gy, _, weight, *_, output_mask = user.args
    return not output_mask[1] and arg is not gy and arg is not weight
