"""Read a step from the text that `text.print_graph` writes, or that a person wrote: ten lines make a test of a pass.

    def step(
        x,  # input x float32[2, 3]
    ):
        relu = aten.relu(x)
        return (
            relu,  # output output
        )

The text is parsed and never run. A shape after a call may be left out; one that is there must be what the call gives.
"""

from __future__ import annotations

import ast
import io
import json
import logging
import math
import operator
import tokenize
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor, fx
from torch._ops import OpOverload, OpOverloadPacket

from gfcompile.errors import UserError
from gfcompile.graph.text import type_of
from gfcompile.graph.text_facts import STORED, Facts, updated_by
from gfcompile.graph.text_shapes import Shapes
from gfcompile.ops import gf
from gfcompile.step import Body, Role, Step, Value

NAMESPACES = {"aten": torch.ops.aten, "gf": gf}
MOST_DRAWN = 2**28  # elements of a tensor: a text of one line must not take all memory
_NUMBERS = {"inf": math.inf, "nan": math.nan}
_SETTINGS = (torch.dtype, torch.layout, torch.memory_format)  # what `torch.` stands before in an argument
_UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError, tokenize.TokenError)


def parse_graph(
    text: str,
    tensors: Mapping[str, Tensor] | None = None,
    where: str = "graph",
    shapes: Shapes | None = None,
    draw: bool = True,
) -> Step:
    """The step that was printed, without its log; errors begin with `where` and the line.

    `tensors` are the values of parameters, buffers and constants by name. One that is not among them is drawn by its
    name: the same numbers every time, in [0.5, 1.5), and zeros where the type is not a float's. Without `draw` it has
    no value, for whoever reads the graph only.
    """
    return _Reader(text, where, shapes or Shapes()).read(tensors or {}, draw)


class _Reader:
    """One text; the methods follow its order."""

    def __init__(self, text: str, where: str, shapes: Shapes) -> None:
        self.where, self.shapes = where, shapes
        self.facts = Facts()
        self.graph = fx.Graph()
        self.nodes: dict[str, fx.Node] = {}
        self.function, self.comments = self._split(text)

    def read(self, tensors: Mapping[str, Tensor], draw: bool) -> Step:
        *calls, last = self.function.body
        with _without_log():
            inputs = [self._input(argument) for argument in self._parameters()]
            for line in calls:
                self._assign(line)
        results, outputs = self._return(last)
        self.graph.output(tuple(results))
        self.facts.restore_names(self.graph)
        body = Body(torch.nn.Module(), self.graph)
        updated = updated_by(outputs) if self.facts.updated is None else self.facts.updated
        stored = self._stored(inputs, tensors, draw)
        plan = self.facts.make_plan(outputs)
        return Step(body, inputs, outputs, plan, stored, updated, self.facts.layouts, origins=self.facts.origins)

    def _split(self, text: str) -> tuple[ast.FunctionDef, dict[int, str]]:
        """The function, and the comments by line; those after it are facts."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about literals: whoever wrote them gets errors instead
                statements = ast.parse(text).body
            tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
        except _UNREADABLE as error:
            line = getattr(error, "lineno", None) or 1
            self._fail(line, f"is not Python ({getattr(error, 'msg', None) or error}); give what --dump wrote")
        functions = [part for part in statements if isinstance(part, ast.FunctionDef) and part.name == "step"]
        for part in statements:
            if part not in functions[:1]:
                self._fail(part.lineno, "only one function 'step' is read; remove this")
        if not functions:
            self._fail(1, "there is no function 'step'; give what --dump wrote")
        comments = {}
        for token in tokens:
            if token.type == tokenize.COMMENT:
                line, content = token.start[0], token.string[1:].strip(" ")
                if line <= (functions[0].end_lineno or 0):
                    comments[line] = content
                else:
                    self._checked(line, self.facts.add, content)
        return functions[0], comments

    def _parameters(self) -> list[ast.arg]:
        given = self.function.args
        if given.vararg or given.kwarg or given.kwonlyargs or given.posonlyargs or given.defaults:
            self._fail(self.function.lineno, "inputs are plain names, one per line")
        return given.args

    def _input(self, argument: ast.arg) -> Value:
        """`x,  # input x float32[2, 3]`."""
        line = argument.lineno
        comment = self.comments.get(line, "")
        value, rest = self._checked(line, _read_value, comment)
        dtype, shape, strides = self._checked(line, _read_type, rest)
        node = self._named(line, argument.arg, lambda: self.graph.placeholder(argument.arg))
        node.meta["val"] = self._checked(line, self._fake, dtype, shape, strides)
        return value

    def _assign(self, line: ast.stmt) -> None:
        """`relu = aten.relu(x)  # float32[2, 3]`."""
        match line:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as call):
                pass
            case _:
                self._fail(line.lineno, "is not 'name = operator(arguments)'")
        target = self._checked(line.lineno, _find_operator, call.func)
        args = tuple(self._argument(arg) for arg in call.args)
        kwargs = {keyword.arg: self._argument(keyword.value) for keyword in call.keywords}
        if None in kwargs:
            self._fail(line.lineno, "'**' is not read; write the arguments by name")
        node = self._named(
            line.lineno, name, lambda: self.graph.create_node("call_function", target, args, kwargs, name)
        )
        node.meta["val"] = self._infer(line.lineno, node)
        comment = self.comments.get(line.end_lineno or line.lineno, "")
        if comment:
            self._checked(line.lineno, self._compare, node, comment)

    def _return(self, line: ast.stmt) -> tuple[list[fx.Node | None], list[Value]]:
        if not isinstance(line, ast.Return) or not isinstance(line.value, ast.Tuple):
            self._fail(line.lineno, "the last statement must be 'return (', one result per line")
        results, outputs = [], []
        for each in line.value.elts:
            results.append(self._argument(each))
            value, rest = self._checked(each.lineno, _read_value, self.comments.get(each.lineno, ""))
            if rest or not (results[-1] is None or isinstance(results[-1], fx.Node)):
                self._fail(each.lineno, "a result is a node, with its role and name after '#'")
            outputs.append(value)
        return results, outputs

    def _argument(self, node: ast.expr) -> Any:
        """A node of the graph, or a value as `repr` writes it."""
        if isinstance(node, ast.List | ast.Tuple):
            return [self._argument(item) for item in node.elts]
        if isinstance(node, ast.Name) and node.id not in _NUMBERS:
            if node.id not in self.nodes:
                self._fail(node.lineno, f"'{node.id}' is not defined before this line")
            return self.nodes[node.id]
        return self._checked(node.lineno, _read_constant, node)

    def _named(self, line: int, name: str, make: Callable[[], fx.Node]) -> fx.Node:
        if name in self.nodes:
            self._fail(line, f"'{name}' is defined twice")
        if name in _NUMBERS:
            self._fail(line, f"'{name}' is a number; call the node '{name}_1'")
        node = self.nodes[name] = make()
        node.name = name  # fx itself avoids the names of Python's functions, the tracer does not: `input`
        return node

    def _infer(self, line: int, node: fx.Node) -> Any:
        try:
            return self.shapes.infer(node)
        except Exception as error:  # noqa: BLE001 - an operator may raise anything about its arguments
            reason = str(error).partition("\n")[0]
            self._fail(line, f"{node.target} refuses these arguments ({type(error).__name__}: {reason})")

    def _compare(self, node: fx.Node, comment: str) -> None:
        """The printed type is that of the call; strides are those of the trace, which the call may not give."""
        written, brace, _ = comment.partition("{")
        found = type_of(node.meta["val"])
        if written != found:
            raise ValueError(f"the call gives {found}, the comment says {written}")
        if brace:
            node.meta["val"] = self._fake(*_read_type(comment))

    def _fake(self, dtype: torch.dtype, shape: list[int], strides: list[int] | None) -> Tensor:
        try:
            return self.shapes.tensor(dtype, shape, strides)
        except (RuntimeError, TypeError, OverflowError) as error:
            raise ValueError(f"no tensor has this shape ({error})") from error

    def _stored(self, inputs: list[Value], tensors: Mapping[str, Tensor], draw: bool) -> dict[str, Tensor]:
        """Values of the inputs that have some. An optimizer packs a weight; its tensor stays as the model has it."""
        stored = {}
        for argument, value in zip(self.function.args.args, inputs, strict=True):
            if value.role not in STORED:
                continue
            fake = self.nodes[argument.arg].meta["val"]
            layout = self.facts.layouts.get(value.name)
            shape = tuple(fake.shape) if layout is None else layout.logical_shape
            given = tensors.get(value.name)
            if given is not None and (tuple(given.shape), given.dtype) != (shape, fake.dtype):
                self._fail(
                    argument.lineno, f"the tensor '{value.name}' is {type_of(given)}; give the dump's own weights"
                )
            if given is not None:
                stored[value.name] = given
            elif draw:
                stored[value.name] = self._drawn(argument.lineno, value.name, shape, fake.dtype)
        return stored | {name: tensors.get(name, torch.zeros(())) for name in self.facts.unread}

    def _drawn(self, line: int, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        if math.prod(shape) > MOST_DRAWN:
            self._fail(line, f"'{name}' is too large to be drawn; give its tensor with --weights")
        if not dtype.is_floating_point:
            return torch.zeros(shape, dtype=dtype)
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode("utf-8", "backslashreplace")))
        return (torch.rand(shape, generator=generator) + 0.5).to(dtype)

    def _checked(self, line: int, read: Callable[..., Any], *args: Any) -> Any:
        try:
            return read(*args)
        except ValueError as error:
            raise UserError(f"{self.where}: line {line}: {error}") from error

    def _fail(self, line: int, reason: str) -> NoReturn:
        raise UserError(f"{self.where}: line {line}: {reason}")


@contextmanager
def _without_log() -> Iterator[None]:
    """An operator that refuses its arguments logs a traceback too; the line that it stands in says enough."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    was, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = was


def _read_value(comment: str) -> tuple[Value, str]:
    """Role and name, and what follows them."""
    role, _, rest = comment.partition(" ")
    if role not in list(Role):
        raise ValueError(f"'{role}' is no role; write '# ROLE NAME' with one of {', '.join(Role)}")
    if rest.startswith('"'):
        name, end = json.JSONDecoder().raw_decode(rest)
        return Value(Role(role), name), rest[end:].strip(" ")
    name, _, rest = rest.partition(" ")
    if not name:
        raise ValueError(f"'{comment}' has no name; write '# ROLE NAME'")
    return Value(Role(role), name), rest.strip(" ")


def _read_type(text: str) -> tuple[torch.dtype, list[int], list[int] | None]:
    """Of `float32[2, 3]{1, 2}`; the strides may be left out."""
    name, bracket, rest = text.partition("[")
    sizes, end, rest = rest.partition("]")
    dtype = getattr(torch, name, None) if name.isidentifier() else None
    is_strided = rest.startswith("{") and rest.endswith("}")
    if not isinstance(dtype, torch.dtype) or not bracket or not end or (rest and not is_strided):
        raise ValueError(f"'{text}' is no type; write one like float32[2, 3]")
    shape = _read_sizes(text, sizes)
    strides = _read_sizes(text, rest[1:-1]) if rest else None
    if strides is not None and len(strides) != len(shape):
        raise ValueError(f"'{text}' has {len(strides)} strides for {len(shape)} axes")
    return dtype, shape, strides


def _read_sizes(text: str, sizes: str) -> list[int]:
    parts = [part.strip(" ") for part in sizes.split(",")] if sizes else []
    if not all(part.isdecimal() and part.isascii() and len(part) < 19 for part in parts):
        raise ValueError(f"'{text}' is no type; write one like float32[2, 3]")
    return list(map(int, parts))


def _read_constant(node: ast.expr) -> Any:
    """Numbers, strings, True, False, None, inf, nan, `torch.float32` and its like, `device(type='cpu')`."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float | str | None):
        return node.value
    if isinstance(node, ast.Name) and node.id in _NUMBERS:
        return _NUMBERS[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        number = _read_constant(node.operand)
        if isinstance(number, int | float) and not isinstance(number, bool):
            return -number
    dotted = _dotted(node)
    if dotted and dotted[0] == "torch" and len(dotted) == 2 and isinstance(getattr(torch, dotted[1], None), _SETTINGS):
        return getattr(torch, dotted[1])
    if isinstance(node, ast.Call) and _dotted(node.func) == ["device"] and not node.args:
        values = {keyword.arg: ast.literal_eval(keyword.value) for keyword in node.keywords if keyword.arg}
        try:
            return torch.device(**values)
        except (TypeError, RuntimeError) as error:
            raise ValueError(f"'{ast.unparse(node)}' is no device") from error
    raise ValueError(f"'{ast.unparse(node)}' is no value that a graph holds")


def _find_operator(node: ast.expr) -> Any:
    """Of the two namespaces, only what makes tensors and neither changes its operands nor opens files."""
    dotted = _dotted(node)
    written = ".".join(dotted)
    if dotted == ["getitem"]:
        return operator.getitem
    if len(dotted) not in (2, 3) or dotted[0] not in NAMESPACES:
        raise ValueError(f"'{ast.unparse(node)}' is no operator of a graph; use aten.*, gf.* or getitem")
    packet = getattr(NAMESPACES[dotted[0]], dotted[1], None)
    overload = getattr(packet, dotted[2] if len(dotted) == 3 else "default", None)
    if not isinstance(packet, OpOverloadPacket) or not isinstance(overload, OpOverload):
        known = ", ".join(packet.overloads()) if isinstance(packet, OpOverloadPacket) else ""
        raise ValueError(f"there is no operator '{written}'" + (f"; its overloads are {known}" if known else ""))
    schema = overload._schema
    makes_tensors = all("Tensor" in str(each.type) for each in schema.returns) and schema.returns
    if schema.is_mutable or not makes_tensors or any(each.name == "filename" for each in schema.arguments):
        raise ValueError(f"'{written}' does more than to compute tensors; a graph cannot hold it")
    return overload


def _dotted(node: ast.expr) -> list[str]:
    """["aten", "mul", "Tensor"]; empty for anything but names and dots."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.insert(0, node.attr)
        node = node.value
    return [node.id, *parts] if isinstance(node, ast.Name) else []
