"""What every translation needs: arguments as kernels take them, and a kernel called under its own name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx
from tvm import relax, tirx
from tvm.relax.utils import gen_call_tir_inputs

_MOST = 4096  # kernels that are remembered
_FUNCTIONS: dict[tuple[Callable[..., object], str], tuple[tirx.PrimFunc, object]] = {}

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


def emit(importer: Importer, kernel: Callable[..., object], *args: object, name: str | None = None) -> relax.Var:
    """Call a kernel written in TE."""
    builder = importer.block_builder
    function, tensors, result = _make_function(kernel, args)
    return builder.emit(relax.call_tir(builder.add_func(function, name or kernel.__name__), tensors, result))


def _make_function(
    kernel: Callable[..., object], args: tuple[object, ...]
) -> tuple[tirx.PrimFunc, list[relax.Expr], object]:
    """The kernel for these arguments, the tensors among them, and its result's type.

    A step's programs ask for the same again and again; variables' names count, since they become the kernel's.
    """
    if "<locals>" in kernel.__qualname__:  # made for one call
        return gen_call_tir_inputs(kernel, *args)
    question = (kernel, repr([_describe(arg) for arg in args]))
    tensors = [arg for arg in args if isinstance(arg, relax.Var)]
    if question not in _FUNCTIONS:
        function, found, result = gen_call_tir_inputs(kernel, *args)
        if len(found) != len(tensors) or any(not one.same_as(other) for one, other in zip(found, tensors, strict=True)):
            return function, found, result
        if len(_FUNCTIONS) >= _MOST:
            _FUNCTIONS.clear()
        _FUNCTIONS[question] = function, result
    function, result = _FUNCTIONS[question]
    return function, tensors, result


def _describe(arg: object) -> object:
    return (arg.name, str(arg.ty)) if isinstance(arg, relax.Var) else arg
