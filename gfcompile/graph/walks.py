"""Walks over fx graphs. None recurses: a graph is as deep as the network, and Python's stack is not."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from torch import fx


def nodes_above(nodes: Iterable[fx.Node], given: Collection[fx.Node] = ()) -> dict[fx.Node, None]:
    """These and all that they are computed from, as they are met; nothing above what is given, nor that itself."""
    found = {node: None for node in nodes if node not in given}
    waiting = list(found)
    while waiting:
        for arg in waiting.pop().all_input_nodes:
            if arg not in found and arg not in given:
                found[arg] = None
                waiting.append(arg)
    return found
