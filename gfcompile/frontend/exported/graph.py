"""An exported program's JSON as an fx graph: every value is parsed, and no text of the file becomes code.

Nodes get names of our own: fx writes a graph as Python source, names included.
"""

from __future__ import annotations

import json
import operator
import re
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx, nn
from torch._export.serde.schema import Layout, MemoryFormat
from torch._export.serde.serialize import _SERIALIZE_TO_TORCH_MEMORY_FORMAT

from gfcompile.errors import UserError
from gfcompile.frontend.exported.guards import guard
from gfcompile.frontend.exported.operators import NO_GRADIENT, find_operator, is_ignored
from gfcompile.frontend.exported.tensors import Tensors, dtype_of
from gfcompile.frontend.foreign import MalformedError, refuse_without_trust

_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")  # of a tensor in a model
_FORMULA = re.compile(r"[A-Za-z0-9_ ()+*/%,.=<>&|~'-]*")
_LITERALS = {"as_int": int, "as_string": str, "as_bool": bool}
_LISTS = {"as_ints": "as_int", "as_floats": "as_float", "as_bools": "as_bool", "as_strings": "as_string"}
_ON_SIZES = ("as_sym_int", "as_sym_float", "as_sym_bool")
_NUMBERS: dict[str, tuple[type, ...]] = {
    "int": (int,), "SymInt": (int,), "float": (int, float), "number": (int, float, bool, complex), "bool": (bool,),
    "complex": (int, float, complex),
}  # fmt: skip
_SETTINGS = {
    "str": str, "ScalarType": torch.dtype, "Layout": torch.layout, "MemoryFormat": torch.memory_format,
    "Device": torch.device,
}  # fmt: skip
_LARGEST_NUMBER = 1 << 31  # of a size, a stride and the like: kernels multiply them and do not look for overflows
_TO_THE_END = (1 << 63) - 1  # of a slice
_DEEPEST = 20  # containers within containers
_END = object()
_TAKEN = frozenset(dir(nn.Module()))  # by what holds the tensors
_TAKEN_AT_THE_TOP = frozenset(dir(fx.GraphModule(nn.Module(), fx.Graph())))


class GraphReader:
    """Builds a GraphModule from the `graph_module` part of a program."""

    def __init__(self, path: str, part: dict[str, Any], tensors: Tensors) -> None:
        self._path, self._part = path, part
        self._tensors = tensors
        self._graph = fx.Graph()
        self._values: dict[str, fx.Node] = {}

    def read(self) -> fx.GraphModule:
        """The whole graph, checked as it is read; raises a refusal that names the file."""
        part, signature = self._part["graph"], self._part["signature"]
        self._check_expressions(part)
        self._read_doors(part["inputs"], signature["input_specs"])
        for node in part["nodes"]:
            self._read_node(node)
        outputs = self._read_results(part["outputs"], signature["output_specs"])
        top = next(entry["signature"] for entry in self._part["module_call_graph"] if entry["fqn"] == "")
        _structured(top["in_spec"], iter([None]))
        if not all(str(name).isidentifier() for name in top.get("forward_arg_names") or ()):
            refuse_without_trust(self._path, f"calls an input '{top['forward_arg_names'][0]}', which is no name")
        self._graph.output(_structured(top["out_spec"], iter(outputs)))
        self._graph.lint()
        root = nn.Module()
        _hold(root, self._tensors)
        module = fx.GraphModule(root, self._graph)
        _hold(module, self._tensors)  # fx copies what the graph reads, and forgets what is no part of the state
        return module

    def example_shape(self) -> tuple[int, ...] | None:
        """The shape of the one input; where it is dynamic, that of the example it was exported with."""
        name = next(
            spec["user_input"]["arg"]["as_tensor"]["name"]
            for spec in self._part["signature"]["input_specs"]
            if "user_input" in spec
        )
        sizes: list[Any] = [
            size["as_int"] if "as_int" in size else (size["as_expr"].get("hint") or {}).get("as_int")
            for size in self._part["graph"]["tensor_values"][name]["sizes"]
        ]
        return tuple(sizes) if all(type(size) is int and size > 0 for size in sizes) else None

    def _check_expressions(self, part: dict[str, Any]) -> None:
        """Sizes that depend on the input are written as formulas. Nobody evaluates them here; others would."""
        for value in part["tensor_values"].values():
            for size in (*value["sizes"], *value["strides"]):
                formula = size["as_expr"]["expr_str"] if "as_expr" in size else ""
                if not _FORMULA.fullmatch(formula) or "__" in formula:
                    refuse_without_trust(self._path, f"holds the expression '{formula}'")

    # ---- inputs and outputs

    def _read_doors(self, inputs: list[Any], specs: list[Any]) -> None:
        users = sum("user_input" in spec for spec in specs)
        if users != 1:
            raise UserError(f"{self._path}: takes {users} inputs; export a model that takes one batch tensor")
        for value, spec in zip(inputs, specs, strict=True):
            name = value["as_tensor"]["name"]
            ((kind, about),) = spec.items()
            if kind == "user_input":
                self._define(name, self._graph.placeholder("x"))
            elif kind in ("parameter", "buffer", "tensor_constant"):
                self._define(name, self._get(about[f"{kind}_name"]))
            else:
                refuse_without_trust(self._path, f"takes a '{kind}', which is not a tensor")

    def _read_results(self, outputs: list[Any], specs: list[Any]) -> list[Any]:
        """The user's outputs; a buffer's new value is copied into it."""
        results = []
        for value, spec in zip(outputs, specs, strict=True):
            ((kind, about),) = spec.items()
            if kind == "user_output":
                results.append(self._argument(value))
            elif kind == "buffer_mutation":
                buffer = self._get(about["buffer_name"])
                self._graph.call_function(torch.ops.aten.copy_.default, (buffer, self._argument(value)))
            else:
                refuse_without_trust(self._path, f"gives a '{kind}', which is no output of a model")
        return results

    def _get(self, name: Any) -> fx.Node:
        if type(name) is not str or not (name in self._tensors.weights or name in self._tensors.constants):
            raise MalformedError(f"it has no tensor '{name}'")
        return self._graph.get_attr(name)

    def _define(self, name: Any, node: fx.Node) -> None:
        if type(name) is not str or not name.isidentifier():
            refuse_without_trust(self._path, f"calls a value '{name}', which is no name")
        if name in self._values:
            raise MalformedError(f"it computes '{name}' twice")
        self._values[name] = node

    # ---- nodes

    def _read_node(self, node: dict[str, Any]) -> None:
        target = node["target"]
        if is_ignored(target):
            return
        if target == NO_GRADIENT:
            self._read_region(node)
            return
        function = find_operator(target)
        if function is None:
            refuse_without_trust(self._path, f"calls '{target}', which is not an operator that gfcompile knows")
        if isinstance(function, torch._ops.OpOverload):
            args, kwargs = self._by_schema(function, node["inputs"])
            function = guard(function)
        else:
            args, kwargs = [self._argument(each["arg"]) for each in node["inputs"]], {}
        self._give(self._graph.call_function(function, tuple(args), kwargs), node["outputs"])

    def _by_schema(self, function: Any, inputs: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        given = {each["name"]: self._argument(each["arg"]) for each in inputs}
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for index, parameter in enumerate(function._schema.arguments):
            if parameter.name not in given:
                continue
            value = given.pop(parameter.name)
            if not _fits(value, str(parameter.real_type)):
                raise MalformedError(f"'{function}' takes a '{parameter.real_type}' as its '{parameter.name}'")
            if parameter.kwarg_only or len(args) < index:
                kwargs[parameter.name] = value
            else:
                args.append(value)
        if given:
            raise MalformedError(f"'{function}' takes no '{next(iter(given))}'")
        return args, kwargs

    def _give(self, made: fx.Node, outputs: list[Any]) -> None:
        """Name what a node computes: one value, several, or a list of tensors."""
        if len(outputs) == 1 and "as_tensors" not in outputs[0]:
            self._define(_name_of(outputs[0]), made)
            return
        names = outputs[0]["as_tensors"] if len(outputs) == 1 else [output.get("as_tensor") for output in outputs]
        for index, each in enumerate(names):
            if each is not None:  # an output that nobody reads may be left out
                self._define(each["name"], self._graph.call_function(operator.getitem, (made, index)))

    def _read_region(self, node: dict[str, Any]) -> None:
        """The body of a `with torch.no_grad()`, in its place; no gradient passes its results."""
        enabled, region, *given = (each["arg"] for each in node["inputs"])
        inner, outer = region["as_graph"]["graph"], self._values
        self._values = {
            _name_of(door): self._argument_of(outer, value) for door, value in zip(inner["inputs"], given, strict=True)
        }
        for each in inner["nodes"]:
            self._read_node(each)
        results = [self._argument(value) for value in inner["outputs"]]
        self._values = outer
        names = [_name_of(output) for output in _flat(node["outputs"])]
        for name, result in zip(names, results, strict=True):
            if enabled["as_bool"] is not True and isinstance(result, fx.Node):
                result = self._graph.call_function(torch.ops.aten.detach.default, (result,))
            self._define(name, result)

    # ---- arguments

    def _argument(self, value: dict[str, Any]) -> Any:
        return self._argument_of(self._values, value)

    def _argument_of(self, values: dict[str, fx.Node], argument: dict[str, Any]) -> Any:
        ((kind, value),) = argument.items()
        if kind == "as_none":
            return None
        if kind == "as_tensor":
            return _look_up(values, value["name"])
        if kind in _LITERALS and type(value) is _LITERALS[kind]:
            return value
        if kind == "as_float":
            return float(value)  # infinities are words
        if kind == "as_complex":
            return complex(float(value["real"]), float(value["imag"]))
        if kind in _LISTS:
            return [self._argument_of(values, {_LISTS[kind]: each}) for each in value]
        if kind == "as_tensors":
            return [_look_up(values, each["name"]) for each in value]
        if kind in ("as_optional_tensors", "as_optional_tensor"):
            several = [self._argument_of(values, each) for each in (value if kind.endswith("s") else [value])]
            return several if kind.endswith("s") else several[0]
        if kind in _ON_SIZES:
            ((form, size),) = value.items()
            return _look_up(values, size) if form == "as_name" else self._argument_of(values, value)
        if kind.removesuffix("s") in _ON_SIZES:
            return [self._argument_of(values, {kind.removesuffix("s"): each}) for each in value]
        return self._setting(kind, value)

    def _setting(self, kind: str, value: Any) -> Any:
        """Types and places; whatever device it was exported on, it is the CPU here."""
        if kind == "as_scalar_type":
            return dtype_of(value)
        if kind == "as_device":
            return torch.device("cpu")
        if kind == "as_memory_format" and value in set(MemoryFormat) - {MemoryFormat.Unknown}:
            return _SERIALIZE_TO_TORCH_MEMORY_FORMAT[MemoryFormat(value)]
        if kind == "as_layout" and value == Layout.Strided:
            return torch.strided
        refuse_without_trust(self._path, f"passes an argument '{kind}', which is not a tensor or a number")


def _fits(value: Any, kind: str) -> bool:
    """Whether a value is of a schema's type; ATen takes an enum's number for any number."""
    if kind.startswith("Optional["):
        return value is None or _fits(value, kind[9:-1])
    if kind.startswith("List["):
        return isinstance(value, list) and all(_fits(each, kind[5:-1]) for each in value)
    if isinstance(value, fx.Node):  # a tensor, or a size
        return kind in ("Tensor", *_NUMBERS)
    if kind == "Tensor":
        return type(value) in (int, float, bool, complex)
    if type(value) is int and kind in ("int", "SymInt") and abs(value) > _LARGEST_NUMBER and value != _TO_THE_END:
        return False
    return type(value) in _NUMBERS.get(kind, ()) or isinstance(value, _SETTINGS.get(kind, ()))


def _look_up(values: dict[str, fx.Node], name: Any) -> fx.Node:
    if type(name) is not str or name not in values:
        raise MalformedError(f"it reads '{name}' before it is computed")
    return values[name]


def _flat(outputs: list[Any]) -> list[Any]:
    if len(outputs) == 1 and "as_tensors" in outputs[0]:
        return [{"as_tensor": each} for each in outputs[0]["as_tensors"]]
    return outputs


def _name_of(output: dict[str, Any]) -> Any:
    ((kind, value),) = output.items()
    return value["name"] if kind == "as_tensor" else value["as_name"]


def _structured(spec: str, values: Iterator[Any]) -> Any:
    """Inputs or outputs in the containers that the model takes or returns them in."""
    version, tree = json.loads(spec)
    made = _fill(tree, values, 0)
    if version != 1 or next(values, _END) is not _END:
        raise MalformedError("its inputs or outputs do not fit their structure")
    return made


def _fill(tree: dict[str, Any], values: Iterator[Any], depth: int) -> Any:
    kind, children = tree["type"], tree["children_spec"]
    if depth > _DEEPEST:
        raise MalformedError("its inputs or outputs are nested too deeply")
    if kind is None:
        return next(values)
    parts = [_fill(child, values, depth + 1) for child in children]
    if kind in ("builtins.tuple", "builtins.list"):
        return tuple(parts) if kind == "builtins.tuple" else parts
    if kind not in ("builtins.dict", "collections.OrderedDict"):
        raise MalformedError(f"it takes or gives a '{kind}', not a tuple, a list or a dictionary")
    keys = json.loads(tree["context"])
    if not all(type(key) in (str, int) for key in keys):
        raise MalformedError("a dictionary that it takes or gives has other keys than words and numbers")
    pairs = zip(keys, parts, strict=True)
    return OrderedDict(pairs) if kind == "collections.OrderedDict" else dict(pairs)


def _hold(root: nn.Module, tensors: Tensors) -> None:
    """Hold the tensors under their names, in empty modules where there are none; constants are no part of the state."""
    for name, tensor in {**tensors.constants, **tensors.weights}.items():
        first, *rest = name.split(".")
        if not _NAME.fullmatch(name) or first in _TAKEN_AT_THE_TOP or not _TAKEN.isdisjoint(rest):
            raise MalformedError(f"'{name}' is no name of a tensor")
        owner = root
        *folders, last = name.split(".")
        for folder in folders:
            if folder not in owner._modules:
                owner.add_module(folder, nn.Module())
            owner = owner.get_submodule(folder)
        if isinstance(tensor, nn.Parameter):
            if last not in owner._parameters:
                owner.register_parameter(last, tensor)
        elif last not in owner._buffers:
            owner.register_buffer(last, tensor)
        if name not in tensors.weights:
            owner._non_persistent_buffers_set.add(last)
