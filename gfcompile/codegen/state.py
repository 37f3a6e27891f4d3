"""The tensors that live as long as the step: trained parameters, optimizer state, updated buffers, constants."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from gfcompile.codegen.description import Entry
from gfcompile.step import STATE, Role, Step, Value


class StateTable:
    """One numbering for all programs; constants with equal contents share an entry."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.constants: dict[str, Tensor] = {}
        self._indices: dict[tuple[str, Value], int] = {}
        self._by_content: dict[str, int] = {}
        self._by_value: dict[Value, int] = {}

    def add(self, program: str, step: Step) -> None:
        """Number the state that the program reads."""
        for node, value in zip(step.placeholders(), step.inputs, strict=True):
            if value.role in STATE and not step.is_frozen(value):
                self._indices[program, value] = self._state(value, node.meta["val"], step)
            elif value.role in STATE or value.role is Role.CONSTANT:
                self._indices[program, value] = self._constant(step.tensors[value.name])

    def index(self, program: str, value: Value) -> int:
        """Where a program's value stands in the table."""
        return self._indices[program, value]

    def of_role(self, *roles: Role) -> list[Entry]:
        """Entries of these roles, in order."""
        return [entry for entry in self.entries if entry.role in roles]

    def _state(self, value: Value, tensor: Tensor, step: Step) -> int:
        if value not in self._by_value:
            layout = step.layouts.get(value.parameter)
            shape = tuple(tensor.shape) if layout is None else layout.logical_shape
            self._by_value[value] = len(self.entries)
            self.entries.append(Entry(value.role, value.name, shape, _numpy_name(tensor), layout))
        return self._by_value[value]

    def _constant(self, tensor: Tensor) -> int:
        array = tensor.detach().contiguous()
        digest = hashlib.sha256(array.numpy().tobytes())
        digest.update(f"{tuple(array.shape)} {array.dtype}".encode())
        key = digest.hexdigest()
        if key not in self._by_content:
            name = f"constant{len(self.constants)}"
            self._by_content[key] = len(self.entries)
            self.constants[name] = array
            self.entries.append(Entry(Role.CONSTANT, name, tuple(array.shape), _numpy_name(array), None))
        return self._by_content[key]


def _numpy_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.") if tensor.dtype is not torch.bool else "bool"
