"""A step as text: a Python function with roles, names and shapes as comments, and after it what a pass reads besides.

`text_reader.parse_graph` reads it back. A tensor's values are not in it.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx

from gfcompile.graph.text_facts import write_facts
from gfcompile.runtime.errors import on_one_line
from gfcompile.step import Step

aten = torch.ops.aten
READ_STRIDES = (aten.as_strided.default, aten.as_strided_scatter.default)
Line = tuple[object, object, object, bool, str]  # a call's args, kwargs and value, whether with strides; its text


def print_graph(step: Step, title: str) -> str:
    """The graph as a Python function, with roles and shapes as trailing comments; equal steps give equal text."""
    return Printer().print(step, title)


class Printer:
    """Prints one step again and again between passes: the lines of calls that a pass left alone are taken as they were.

    fx makes new arguments whenever one of them changes, and no pass gives a node another name or operator.
    """

    def __init__(self) -> None:
        self._lines: dict[fx.Node, Line] = {}  # of the graph that was printed last

    def print(self, step: Step, title: str) -> str:
        """As `print_graph`."""
        lines = [f"# {on_one_line(title)}"]
        if step.log:
            lines += [f"#   {on_one_line(line)}" for line in _event_lines(step)]
        return "\n".join([*lines, *self._function(step), *write_facts(step)]) + "\n"

    def _function(self, step: Step) -> list[str]:
        lines = ["def step("]
        for node, value in zip(step.placeholders(), step.inputs, strict=True):
            lines.append(f"    {node.name},  # {value.role} {_quoted(value.name)} {_input_type(node)}")
        lines.append("):")
        lines += self._calls(step.body.graph)
        lines.append("    return (")
        for node, value in zip(step.results(), step.outputs, strict=True):
            lines.append(f"        {getattr(node, 'name', node)},  # {value.role} {_quoted(value.name)}")
        return [*lines, "    )"]

    def _calls(self, graph: fx.Graph) -> list[str]:
        calls = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
        strided = {node for call in calls if _reads_strides(call) for node in call.all_input_nodes}
        self._lines = {node: self._line(node, node in strided) for node in calls}
        return [text for *_, text in self._lines.values()]

    def _line(self, node: fx.Node, is_strided: bool) -> Line:
        args, kwargs, value = node.args, node.kwargs, node.meta.get("val")
        was = self._lines.get(node)
        if was and was[0] is args and was[1] is kwargs and was[2] is value and was[3] == is_strided:
            return was
        return args, kwargs, value, is_strided, f"    {node.name} = {_call(node)}  # {_call_type(value, is_strided)}"


def type_of(value: Any) -> str:
    """`float32[2, 3]`; of several results, each, and `-` for one that is no tensor."""
    return ", ".join(map(_type_name, value if isinstance(value, list | tuple) else [value]))


def strides_of(value: Tensor) -> str:
    """`{1, 2}`, to stand after the shape."""
    return f"{{{', '.join(map(str, value.stride()))}}}"


def _event_lines(step: Step) -> list[str]:
    event = step.log[-1]
    sites = [f"{len(event.sites)} sites" + (": " + ", ".join(event.sites) if event.sites else "")]
    return sites + [f"refused {refusal.layer}: {refusal.reason}" for refusal in event.refusals]


def _quoted(name: str) -> str:
    """The model's own name for a tensor, in quotes where a reader could not tell its end."""
    is_plain = name.isprintable() and name[:1] != '"' and name.split() == [name]
    return name if is_plain else json.dumps(name)


def _call(node: fx.Node) -> str:
    if node.op == "get_attr":
        return f"self.{node.target}"
    arguments = [_argument(arg) for arg in node.args]
    arguments += [f"{name}={_argument(arg)}" for name, arg in node.kwargs.items()]
    return f"{_target(node.target)}({', '.join(arguments)})"


@cache
def _target(target: Any) -> str:
    text = str(target)
    if isinstance(target, str) or ("." in text and " " not in text):
        return text.removesuffix(".default")
    return str(getattr(target, "__name__", text))


def _argument(value: Any) -> str:
    if isinstance(value, fx.Node):
        return value.name
    if isinstance(value, list | tuple):
        return f"[{', '.join([_argument(item) for item in value])}]"
    return repr(value)


def _input_type(node: fx.Node) -> str:
    """Nothing tells the strides of an input but its line; most are contiguous."""
    value = node.meta.get("val")
    has_strides = isinstance(value, Tensor) and not value.is_contiguous()
    return type_of(value) + (strides_of(value) if has_strides else "")


def _call_type(value: object, is_strided: bool) -> str:
    """With strides where the trace's own matter: `as_strided` reads memory, not elements."""
    return type_of(value) + (strides_of(value) if is_strided and isinstance(value, Tensor) else "")


def _reads_strides(node: fx.Node) -> bool:
    return node.target in READ_STRIDES


def _type_name(value: Any) -> str:
    if not hasattr(value, "dtype"):
        return "-"
    return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(map(str, value.shape))}]"
