"""gf operators as functions of the domain "gfcompile": a node with readable attributes, and a body that others can run.

A body has its shapes and windows as constants, so each distinct call is an overload of its own.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from onnx import FunctionProto, NodeProto, helper

from gfcompile.export.emitter import OPSET, Emitter, NoTranslation, Value
from gfcompile.export.gf import TABLE

DOMAIN = "gfcompile"


@dataclass(frozen=True)
class Call:
    """An operator with everything that decides its body; tensors are named as the operator names its arguments."""

    target: Any
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    outs: tuple[Value, ...]
    has_many: bool

    @property
    def overload(self) -> str:
        """The same for equal calls, in every file."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:12]


@lru_cache(maxsize=1024)
def function_of(call: Call) -> FunctionProto:
    """The operator's body; raises NoTranslation for one that has none."""
    if call.target not in TABLE:
        raise NoTranslation(str(call.target))
    to = Emitter()
    result = TABLE[call.target](to, call.outs if call.has_many else call.outs[0], *call.args, **dict(call.kwargs))
    results = list(result) if isinstance(result, tuple) else [result]
    for made, out in zip(results, call.outs, strict=True):
        if not to.rename(0, str(made), out.name):
            to.copy(made, out.name)
    constants = [
        NodeProto(op_type="Constant", output=[tensor.name], attribute=[helper.make_attribute("value", tensor)])
        for tensor in to.constants
    ]
    return helper.make_function(
        DOMAIN,
        operator_name(call.target),
        [value.name for value in tensors_of((call.args, dict(call.kwargs)))],
        [out.name for out in call.outs],
        [*constants, *to.nodes],
        [helper.make_opsetid("", OPSET)],
        attributes=list(attributes_of(call.target, call.args, dict(call.kwargs))),
        overload=call.overload,
    )


def make_call(target: Any, args: Any, kwargs: dict[str, Any], outs: Any) -> Call:
    """`outs` are the expected results, named or not."""
    names = [argument.name for argument in target._schema.arguments]
    formal = tuple(_formal(value, name) for name, value in zip(names, args, strict=False))
    named = tuple((name, _formal(value, name)) for name, value in sorted(kwargs.items()))
    has_many = isinstance(outs, tuple)
    listed = outs if has_many else (outs,)
    results = tuple(Value(f"result_{index}", out.shape, out.dtype) for index, out in enumerate(listed))
    return Call(target, formal, named, results, has_many)


def _formal(argument: Any, name: str) -> Any:
    if isinstance(argument, Value):
        return Value(name, argument.shape, argument.dtype)
    if isinstance(argument, list | tuple):
        return tuple(_formal(part, f"{name}_{index}") for index, part in enumerate(argument))
    return argument


def tensors_of(arguments: Any) -> list[Value]:
    """The tensors among nested arguments, in order."""
    if isinstance(arguments, Value):
        return [arguments]
    if isinstance(arguments, dict):
        arguments = arguments.values()
    elif not isinstance(arguments, list | tuple):
        return []
    return [value for part in arguments for value in tensors_of(part)]


def attributes_of(target: Any, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """What is no tensor, under the operator's own names; what ONNX has no type for, as text."""
    names = [argument.name for argument in target._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    found = {name: _attribute(value) for name, value in given.items() if not tensors_of(value)}
    return {name: value for name, value in found.items() if value is not None}


def _attribute(value: Any) -> Any:
    if value is None or isinstance(value, int | float | str):
        return int(value) if isinstance(value, bool) else value
    if isinstance(value, list | tuple) and all(isinstance(part, int | float) for part in value):
        whole = all(isinstance(part, int) for part in value)
        return [int(part) if whole else float(part) for part in value] or None
    return str(value)


def operator_name(target: Any) -> str:
    """`gf.patch_sum.default` is `patch_sum`."""
    name = str(target).partition(".")[2]
    return name.removesuffix(".default")
