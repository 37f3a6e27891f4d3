"""From an fx graph to ONNX: one value per node, under the node's own name."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from onnx import FunctionProto, NodeProto, ValueInfoProto, helper
from torch import fx

from gfcompile.export.aten import TABLE as ATEN
from gfcompile.export.decompose import decompose
from gfcompile.export.emitter import TYPES, Emitter, NoTranslation, Value
from gfcompile.export.functions import DOMAIN, attributes_of, function_of, make_call, operator_name, tensors_of
from gfcompile.export.gf import TABLE as GF
from gfcompile.export.table import Result

UNTRANSLATED = "gfcompile.untranslated"  # the domain of nodes without a body
ALREADY_SAID = {"dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking"}  # by the expected result

Known = dict[fx.Node, Any]  # a Value, or a tuple of them
Expected = Value | tuple[Value | None, ...]


class GraphWriter:
    """Writes the calls of a graph. With `inline`, gf operators are written as their bodies, without functions.

    `names` are those of graph results; other values are called as their nodes are, with `prefix` in front.
    """

    def __init__(self, names: Mapping[fx.Node, str], inline: bool = False, prefix: str = "") -> None:
        self.to = Emitter(prefix)
        self.names, self.inline, self.prefix = names, inline, prefix
        self.functions: dict[str, FunctionProto] = {}
        self.untranslated: dict[str, None] = {}
        self.infos: list[ValueInfoProto] = []

    def write(self, body: fx.GraphModule, known: Known) -> None:
        """Every call of the graph; `known` has its placeholders and gets the rest."""
        for node in body.graph.nodes:
            if node.op == "call_function" and self._is_operator(node):
                self._operator(node, known)
            else:
                self._read(body, node, known)

    def _operator(self, node: fx.Node, known: Known) -> None:
        """An operator that has no translation becomes a node without a body: the file still shows the whole graph."""
        since = len(self.to.nodes)
        try:
            found = self._translated(node, known, self.prefix)
        except NoTranslation as reason:
            del self.to.nodes[since:]
            told = "" if str(reason) == str(node.target) else f" ({reason})"
            self.untranslated[f"{node.target}{told}"] = None
            found = self._settled(self._expected(node, self.prefix), self._without_body(node, known), since)
        known[node] = found
        for value in found if isinstance(found, tuple) else [found]:
            if value is not None:
                self.infos.append(helper.make_tensor_value_info(value.name, TYPES[value.dtype], value.shape))

    @staticmethod
    def _is_operator(node: fx.Node) -> bool:
        """Whether it gives tensors that can be read: assertions do not, nor do several results without a reader."""
        value = node.meta.get("val")
        has_many = isinstance(value, tuple | list) and bool(node.users)
        return node.target is not operator.getitem and (torch.is_tensor(value) or has_many)

    def _read(self, body: fx.GraphModule, node: fx.Node, known: Known) -> None:
        if node.op == "get_attr":
            tensor = getattr(body, str(node.target))
            known[node] = Value.of(self.to.constant(tensor.numpy()), tensor)
        elif node.target is operator.getitem:
            source, index = node.args
            known[node] = known[source][index]
        elif node.op == "call_function":
            known[node] = node.meta.get("val")  # a Python number, or nothing

    def _translated(self, node: fx.Node, known: Known, prefix: str) -> Expected:
        out = self._expected(node, prefix)
        args, kwargs = fx.map_arg((node.args, node.kwargs), known.__getitem__)
        since, self.to.scope = len(self.to.nodes), f"{prefix}{node.name}"
        target = node.target
        if target in ATEN:
            said = {name: value for name, value in kwargs.items() if name not in ALREADY_SAID}
            result = ATEN[target](self.to, out, *args, **said)
        elif getattr(target, "namespace", "") != "gf":
            result = self._decomposed(target, args, kwargs)
        elif self.inline and target in GF:
            result = GF[target](self.to, _results(node), *args, **kwargs)
        else:
            result = self._function(node, args, kwargs)
        return self._settled(out, result, since)

    def _expected(self, node: fx.Node, prefix: str) -> Expected:
        """What the node is known to give; None for results that nobody reads."""
        value = node.meta["val"]
        if torch.is_tensor(value):
            return Value.of(self.names.get(node, f"{prefix}{node.name}"), value)
        readers = {user.args[1]: user for user in node.users}
        return tuple(
            Value.of(self.names.get(readers[index], f"{prefix}{readers[index].name}"), tensor)
            if index in readers and tensor is not None
            else None
            for index, tensor in enumerate(value)
        )

    def _settled(self, out: Expected, result: Result, since: int) -> Expected:
        """Results get their expected names; one that no new node made is copied."""
        pairs = list(zip(out, result, strict=True)) if isinstance(out, tuple) else [(out, result)]
        renamed: dict[str, str] = {}
        for wanted, made in pairs:
            if wanted is None:
                continue
            name = str(made)
            if not self.to.rename(since, name, wanted.name):
                self.to.copy(renamed.get(name, name), wanted.name)
            renamed.setdefault(name, wanted.name)
        return out

    def _decomposed(self, target: Any, args: Any, kwargs: dict[str, Any]) -> Result:
        """Through core ATen; one operator without a translation in there leaves none for the whole."""
        spelled = decompose(target, args, kwargs)
        if spelled is None:
            raise NoTranslation(str(target))
        body, tensors = spelled
        prefix = f"{self.to.scope}/"
        inner: Known = dict(zip(body.graph.find_nodes(op="placeholder"), tensors, strict=True))
        for node in body.graph.nodes:
            if node.op == "call_function" and self._is_operator(node):
                inner[node] = self._translated(node, inner, prefix)
            else:
                self._read(body, node, inner)
        results = body.graph.output_node().args[0]
        if isinstance(results, fx.Node):
            return str(inner[results].name)
        return tuple(None if node is None else inner[node].name for node in results)

    def _function(self, node: fx.Node, args: Any, kwargs: dict[str, Any]) -> Result:
        function = function_of(make_call(node.target, args, kwargs, _results(node)))
        self.functions.setdefault(f"{function.name}:{function.overload}", function)
        proto = NodeProto(op_type=function.name, domain=DOMAIN, overload=function.overload)
        return self._node(node, proto, args, kwargs)

    def _without_body(self, node: fx.Node, known: Known) -> Result:
        args, kwargs = fx.map_arg((node.args, node.kwargs), known.__getitem__)
        return self._node(node, NodeProto(op_type=operator_name(node.target), domain=UNTRANSLATED), args, kwargs)

    def _node(self, node: fx.Node, proto: NodeProto, args: Any, kwargs: dict[str, Any]) -> Result:
        """A node of one of our domains, its arguments as inputs and attributes."""
        value = node.meta["val"]
        count = 1 if torch.is_tensor(value) else len(value)
        results = self.to.node(proto, count, tensors_of((args, kwargs)), attributes_of(node.target, args, kwargs))
        return results[0] if torch.is_tensor(value) else tuple(results)


def _results(node: fx.Node) -> Value | tuple[Value, ...]:
    """All results of an operator, read or not."""
    value = node.meta["val"]
    if torch.is_tensor(value):
        return Value.of("result", value)
    parts: Sequence[torch.Tensor] = value
    return tuple(Value.of(f"result_{index}", part) for index, part in enumerate(parts))
