"""State tensors: logical layout outside, the kernels' physical layout inside."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from .errors import StepError
from .library import Library
from .manifest import AGAIN, WEIGHTS
from .tensorfile import Array


class StateArray(np.ndarray[Any, np.dtype[Any]]):
    """A numpy array that `Module.load_state_dict` takes as it is: torch asks for `__torch_function__` only."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        torch = sys.modules["torch"]  # the caller

        def convert(value: Any) -> Any:
            return torch.from_numpy(np.asarray(value)) if isinstance(value, cls) else value

        return function(*map(convert, args), **{key: convert(value) for key, value in (kwargs or {}).items()})


def physical_shape(entry: dict[str, Any]) -> tuple[int, ...]:
    """The shape in which the library keeps the tensor."""
    layout = entry.get("layout")
    if layout is None:
        return tuple(entry["shape"])
    return tuple(layout["shape"][axis] for axis in layout["permute"])


def pack(entry: dict[str, Any], logical: Array) -> Array:
    """physical = logical.reshape(layout.shape).transpose(layout.permute)"""
    layout = entry.get("layout")
    return logical if layout is None else logical.reshape(layout["shape"]).transpose(layout["permute"])


def unpack(entry: dict[str, Any], physical: Array) -> Array:
    """The inverse of `pack`, as a copy."""
    layout = entry.get("layout")
    view = physical if layout is None else physical.transpose(np.argsort(layout["permute"]))
    return np.array(view, order="C").reshape(tuple(entry["shape"]))


def fits(entry: dict[str, Any], array: Array) -> bool:
    """Whether the array has the entry's shape and type."""
    return array.shape == tuple(entry["shape"]) and array.dtype == np.dtype(entry["dtype"])


def merge(manifest: dict[str, Any], weights: Mapping[str, Array], trained: Mapping[str, Array]) -> dict[str, Array]:
    """The model's whole state_dict in its order: copies of what was trained and of what stayed as it was compiled."""
    for name in manifest["state_dict"]:
        if name not in weights:
            raise StepError(f"'{WEIGHTS}': has no tensor '{name}'; {AGAIN}")
    kept = {name: manifest["shared"].get(name, name) for name in manifest["state_dict"]}
    return {name: np.array(trained.get(source, weights[name])) for name, source in kept.items()}


class State:
    """The state tensors of one step, by role and name."""

    def __init__(self, entries: list[dict[str, Any]], library: Library, handle: int) -> None:
        self._entries = {(entry["role"], entry["name"]): entry for entry in entries}
        if len(self._entries) != len(entries):
            raise StepError("manifest: two state tensors share a role and a name; recompile the artifact")
        self._indices = {key: index for index, key in enumerate(self._entries)}
        self._library, self._handle = library, handle

    def items(self, *roles: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """(role, name, manifest entry) of these roles, in the manifest's order."""
        return ((role, name, entry) for (role, name), entry in self._entries.items() if role in roles)

    def has(self, role: str, name: str) -> bool:
        """Whether there is such a tensor."""
        return (role, name) in self._entries

    def entry(self, role: str, name: str) -> dict[str, Any]:
        """What the manifest says of it."""
        return self._entries[role, name]

    def get(self, role: str, name: str) -> Array:
        """A copy in logical layout."""
        entry = self._entries[role, name]
        physical: Array = np.empty(physical_shape(entry), entry["dtype"])
        self._library.get(self._handle, self._indices[role, name], physical)
        return unpack(entry, physical)

    def set(self, role: str, name: str, logical: Array) -> None:
        """Write a tensor that is in PyTorch's layout."""
        self.set_physical(role, name, pack(self._entries[role, name], logical))

    def set_physical(self, role: str, name: str, physical: Array) -> None:
        """Write a tensor that is in the library's layout."""
        entry = self._entries[role, name]
        whole = np.ascontiguousarray(physical, entry["dtype"])
        self._library.set(self._handle, self._indices[role, name], whole)
