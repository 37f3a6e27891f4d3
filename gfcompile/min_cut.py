"""The cheapest cut between two nodes of a directed graph (Edmonds and Karp)."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping

Residual = dict[Hashable, dict[Hashable, int]]


def find_far_side(
    capacities: Mapping[Hashable, Mapping[Hashable, int]], source: Hashable, sink: Hashable
) -> set[Hashable]:
    """The sink's side of a cheapest cut; of several, the one nearest to the sink."""
    residual: Residual = {}
    for node, ends in capacities.items():
        for end, capacity in ends.items():
            residual.setdefault(node, {})[end] = residual.get(node, {}).get(end, 0) + capacity
            residual.setdefault(end, {}).setdefault(node, 0)
    while (path := _shortest_path(residual, source, sink)) is not None:
        room = min(residual[node][end] for node, end in path)
        for node, end in path:
            residual[node][end] -= room
            residual[end][node] += room
    return _reaching(residual, sink)


def _shortest_path(residual: Residual, source: Hashable, sink: Hashable) -> list[tuple[Hashable, Hashable]] | None:
    """Edges with room from the source to the sink."""
    before: dict[Hashable, Hashable] = {source: source}
    queue = deque([source])
    while queue and sink not in before:
        node = queue.popleft()
        for end, room in residual.get(node, {}).items():
            if room > 0 and end not in before:
                before[end] = node
                queue.append(end)
    if sink not in before:
        return None
    path = [(before[sink], sink)]
    while path[-1][0] != source:
        end = path[-1][0]
        path.append((before[end], end))
    return path


def _reaching(residual: Residual, sink: Hashable) -> set[Hashable]:
    """The nodes from which there is room up to the sink."""
    found, queue = {sink}, deque([sink])
    while queue:
        end = queue.popleft()
        for node in residual[end]:
            if node not in found and residual[node][end] > 0:
                found.add(node)
                queue.append(node)
    return found
