"""What the inputs and the calls of a text give, as fake tensors."""

from __future__ import annotations

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode

from gfcompile.graph.shapes import infer_under


class Shapes:
    """Fake tensors of one mode. Whoever reads several texts may hand the same one to all of them."""

    def __init__(self) -> None:
        self.mode = FakeTensorMode()
        self._inputs: dict[tuple[object, ...], Tensor] = {}

    def tensor(self, dtype: torch.dtype, shape: list[int], strides: list[int] | None) -> Tensor:
        """One of these sizes; contiguous where no strides are given."""
        key = (dtype, tuple(shape), None if strides is None else tuple(strides))
        if key not in self._inputs:
            with self.mode:
                self._inputs[key] = (
                    torch.empty(shape, dtype=dtype)
                    if strides is None
                    else torch.empty_strided(shape, strides, dtype=dtype)
                )
        return self._inputs[key]

    def infer(self, node: fx.Node) -> object:
        """What a call gives, whose arguments have their shapes; it raises whatever its operator does."""
        return infer_under(self.mode, node.target, node.args, node.kwargs)
