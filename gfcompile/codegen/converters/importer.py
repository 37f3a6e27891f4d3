"""What every translation needs: arguments as kernels take them, and a kernel called under its own name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx
from tvm import relax

Importer = Any  # TVM's ExportedProgramImporter: `env` maps nodes to Relax variables, `block_builder` writes
Converter = Callable[[fx.Node, Importer], relax.Var]


def pair(values: Any) -> tuple[int, int]:
    """A setting for rows and columns."""
    return int(values[0]), int(values[1])


def windows(values: Any) -> tuple[int, ...]:
    """One axis of a patch grid, as operators write it."""
    return tuple(int(value) for value in values)


def is_depthwise(shape: list[int], groups: int) -> bool:
    """Whether every channel of a weight of this logical shape is convolved alone."""
    return groups > 1 and shape[1] == 1 and shape[0] == groups


def dtype_of(node: fx.Node) -> str:
    """The type of a node's elements, as TVM spells it."""
    return str(node.meta["val"].dtype).removeprefix("torch.")


def emit(importer: Importer, kernel: Callable[..., Any], *args: Any, name: str | None = None) -> relax.Var:
    """Call a kernel written in TE."""
    return importer.block_builder.emit_te(kernel, *args, primfunc_name_hint=name or kernel.__name__)
