"""The lines after a printed graph: the plan and what else a pass reads of a step, where it is not the usual.

# plan: norms={'*': 'train'}
# layer: name='conv', r=2, kernel='conv.weight'
# trained: 'conv.weight'               where these are not those with a gradient or a new value among the outputs
# updated: 'bn.running_mean'           the same for buffers
# unread: 'bn.num_batches_tracked'     tensors of the model that are no input any more
# layout: 'conv.weight', WeightLayout(logical_shape=(16, 8, 3, 3), ...)
# origin: 'folded.9.mul', '0.weight'
# names: {'relu': 3}                   the last number given to nodes of that name, where erased ones had it
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from torch import fx

from gfcompile.geometry.convolution import ConvGeometry
from gfcompile.geometry.layouts import WeightLayout
from gfcompile.plan import Plan, PlannedLayer
from gfcompile.step import Role, Step, Value

Record = TypeVar("Record", Plan, PlannedLayer, ConvGeometry, WeightLayout)
STORED = (Role.PARAMETER, Role.BUFFER, Role.CONSTANT)  # roles of inputs whose values `Step.tensors` holds
_RECORDS: dict[str, Any] = {kind.__name__: kind for kind in (ConvGeometry, WeightLayout)}
_PLAN = {"exact": False, "norms": {"*": "eval"}, "reference": False}
_LAYER = {"kind": "conv", "role": "layer", "r": None, "geometry": None}
_TRACED_INPUT = re.compile(r"[pbc]_|arg\d")  # what the tracer calls inputs: no pass makes another
_SEPARATE = ("trained", "trained_parameters")  # fields of a plan with lines of their own


@dataclass
class Facts:
    """What was read: the plan's own settings, and the rest by name."""

    plan: dict[str, Any] = field(default_factory=dict)
    layers: list[PlannedLayer] = field(default_factory=list)
    trained: frozenset[str] | None = None
    updated: frozenset[str] | None = None
    unread: list[str] = field(default_factory=list)
    layouts: dict[str, WeightLayout] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)

    def add(self, line: str) -> None:
        """One line, without its `# `; `ValueError` says what is wrong with it."""
        word, _, rest = line.partition(":")
        read = _READERS.get(word)
        if read is None:
            raise ValueError(f"'{word}' is no word for a line after the graph; use {', '.join(_READERS)}")
        args, kwargs = _arguments(rest)
        try:
            read(self, *args, **kwargs)
        except TypeError as error:
            raise ValueError(f"'{line}' does not say what a '{word}' line must ({error})") from error

    def make_plan(self, outputs: list[Value]) -> Plan:
        """The plan that the lines tell of; what they leave out is as it is by default."""
        trained = trained_by(outputs) if self.trained is None else self.trained
        return Plan(trained=tuple(self.layers), trained_parameters=trained, **{**_PLAN, **self.plan})

    def restore_names(self, graph: fx.Graph) -> None:
        """New nodes are to get the names that they would have got in the graph that was printed."""
        namespace = graph._graph_namespace
        for base, number in self.names.items():
            namespace._used_names.add(base)
            namespace._base_count[base] = number


def write_facts(step: Step) -> list[str]:
    """Nothing for a step of which the function says everything."""
    lines = []
    settings = _unusual(step.plan, _PLAN, _SEPARATE)
    if settings:
        lines.append(f"# plan: {settings}")
    lines += [f"# layer: {_unusual(layer, _LAYER)}" for layer in step.plan.trained]
    if step.plan.trained_parameters != trained_by(step.outputs):
        lines.append(f"# trained: {_listed(sorted(step.plan.trained_parameters))}")
    if step.updated_buffers != updated_by(step.outputs):
        lines.append(f"# updated: {_listed(sorted(step.updated_buffers))}")
    read = {value.name for value in step.inputs if value.role in STORED}
    unread = sorted(step.tensors.keys() - read)
    if unread:
        lines.append(f"# unread: {_listed(unread)}")
    lines += [f"# layout: {name!r}, {layout!r}" for name, layout in step.layouts.items()]
    lines += [f"# origin: {name!r}, {origin!r}" for name, origin in step.origins.items()]
    names = _erased_names(step.body.graph)
    if names:
        lines.append(f"# names: {names}")
    return lines


def trained_by(outputs: Iterable[Value]) -> frozenset[str]:
    """The parameters for which a step returns a gradient or a new value."""
    return frozenset(value.name for value in outputs if value.role in (Role.GRADIENT, Role.PARAMETER))


def updated_by(outputs: Iterable[Value]) -> frozenset[str]:
    """The buffers for which a step returns a new value."""
    return frozenset(value.name for value in outputs if value.role is Role.BUFFER)


def literal(node: ast.expr) -> Any:
    """A Python literal, or one of our records with literals for its fields; `ValueError` for all else."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _RECORDS and not node.args:
        values = {keyword.arg: ast.literal_eval(keyword.value) for keyword in node.keywords if keyword.arg}
        return _checked(_RECORDS[node.func.id](**values))
    return ast.literal_eval(node)


def _arguments(text: str) -> tuple[list[Any], dict[str, Any]]:
    try:
        call = ast.parse(f"_({text})", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"'{text.strip()}' is not a list of Python values") from error
    if not isinstance(call, ast.Call):
        raise ValueError(f"'{text.strip()}' is not a list of Python values")
    try:
        args = [literal(arg) for arg in call.args]
        return args, {keyword.arg: literal(keyword.value) for keyword in call.keywords if keyword.arg}
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(f"'{text.strip()}' holds more than plain Python values") from error


def _add_plan(facts: Facts, **settings: Any) -> None:
    _checked(Plan(trained=(), trained_parameters=frozenset(), **{**_PLAN, **settings}))
    facts.plan.update(settings)


def _add_layer(facts: Facts, **settings: Any) -> None:
    facts.layers.append(_checked(PlannedLayer(**{**_LAYER, **settings})))


def _add_trained(facts: Facts, *names: str) -> None:
    facts.trained = frozenset(_texts(names))


def _add_updated(facts: Facts, *names: str) -> None:
    facts.updated = frozenset(_texts(names))


def _add_unread(facts: Facts, *names: str) -> None:
    facts.unread.extend(_texts(names))


def _add_layout(facts: Facts, name: str, layout: WeightLayout) -> None:
    if not isinstance(layout, WeightLayout):
        raise TypeError("no WeightLayout")
    facts.layouts[_texts([name])[0]] = layout


def _add_origin(facts: Facts, name: str, origin: str) -> None:
    facts.origins[_texts([name])[0]] = _texts([origin])[0]


def _add_names(facts: Facts, names: Mapping[str, int]) -> None:
    if not all(isinstance(base, str) and isinstance(number, int) for base, number in dict(names).items()):
        raise TypeError("no numbers by name")
    facts.names.update(names)


def _texts(names: Iterable[Any]) -> list[str]:
    if not all(isinstance(name, str) for name in names):
        raise TypeError("names are strings")
    return list(names)


def _checked(record: Record) -> Record:
    """The record, if its fields are of the types that its class says."""
    for name, wanted in get_type_hints(type(record)).items():
        if not _fits(getattr(record, name), wanted):
            raise TypeError(f"{name} cannot be {getattr(record, name)!r}")
    return record


def _fits(value: Any, wanted: Any) -> bool:
    """Sizes are not negative, so no number here is."""
    kind, inside = get_origin(wanted) or wanted, get_args(wanted)
    if kind is UnionType:
        return any(_fits(value, each) for each in inside)
    if kind is tuple:
        each = inside[:1] * len(value) if isinstance(value, tuple) and inside[-1] is Ellipsis else inside
        return isinstance(value, tuple) and len(value) == len(each) and all(map(_fits, value, each))
    if kind is int:
        return type(value) is int and value >= 0
    is_plain = isinstance(value, kind)
    return is_plain and (kind is not Mapping or all(map(_fits, [*value, *value.values()], inside[:1] * 2 * len(value))))


_READERS: dict[str, Callable[..., None]] = {
    "plan": _add_plan,
    "layer": _add_layer,
    "trained": _add_trained,
    "updated": _add_updated,
    "unread": _add_unread,
    "layout": _add_layout,
    "origin": _add_origin,
    "names": _add_names,
}


def _unusual(record: Any, usual: Mapping[str, Any], left_out: Iterable[str] = ()) -> str:
    """The fields that are not as `usual`, or by default, as a call writes them."""
    found = []
    for each in fields(record):
        value = getattr(record, each.name)
        value = dict(value) if isinstance(value, Mapping) else value
        if each.name not in left_out and value != usual.get(each.name, each.default):
            found.append(f"{each.name}={value!r}")
    return ", ".join(found)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


def _erased_names(graph: fx.Graph) -> dict[str, int]:
    """By base: where the next node of that name would get another number in a graph without a past."""
    namespace = graph._graph_namespace
    fresh = type(namespace)()
    for node in graph.nodes:
        fresh.create_name(node.name, None)
    return {
        base: _last_number(namespace, base)
        for base in sorted(namespace._base_count)
        if not _TRACED_INPUT.match(base)
        and (
            _last_number(namespace, base) != _last_number(fresh, base)
            or (base in namespace._used_names) != (base in fresh._used_names)
        )
    }


def _last_number(namespace: Any, base: str) -> int:
    number: int = namespace._base_count.get(base, 0)
    while f"{base}_{number + 1}" in namespace._used_names:
        number += 1
    return number
