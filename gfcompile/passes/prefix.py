"""The frozen prefix of a training step, and the step cut in two after it.

    train(x, y) = suffix(prefix(x), y)   ==>   features = prefix(x) ; train_features(features, y)

Exact: both halves compute what the step does. The *prefix* is what depends on the model's inputs and on constants only
and keeps the samples of a batch apart (`samples.py`): its values are those of the sample in every epoch. The *features*
are the values at the cut. It is the cheapest one, counting a byte of features as much as `A_BYTE` multiply-adds of the
prefix that the suffix does again for every sample: what costs no multiply-adds is never stored beside its source (the
patch sum of a map that is stored anyway), nor is a map whose few-channel source is six times smaller.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import networkx
from torch import Tensor, fx

from gfcompile.errors import ContractError
from gfcompile.graph.frozen import frozen_nodes
from gfcompile.graph.multiply_adds import multiply_adds
from gfcompile.graph.sample_independence import Samples, bytes_a_sample
from gfcompile.graph.shapes import shape_of
from gfcompile.graph.walks import nodes_above
from gfcompile.ops import gf
from gfcompile.passes.contract import find_fault
from gfcompile.settings.words import option
from gfcompile.step import STATE, Body, Role, Step, Value

FORMATS = {"float32": 4, "float16": 2}  # bytes of a stored float
A_BYTE = 100  # multiply-adds that take as long as to read a byte: some 50 G a second, and 0.5 GB from a disk


@dataclass(frozen=True)
class Ending:
    """Where the prefix ends though nothing is trained there, why, and what lets it go on."""

    where: str
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"'{self.where}': {self.reason}; {self.remedy}"


@dataclass(frozen=True)
class Prefix:
    """`features` are the nodes at the cut, `computed` those that only the prefix computes; multiply-adds are counted.

    `endings` say where it is shorter than what is frozen; `refusal` why there is nothing to cache.
    """

    batch: int
    features: tuple[fx.Node, ...]
    computed: frozenset[fx.Node] = field(repr=False)
    multiply_adds: int
    step_multiply_adds: int
    endings: tuple[Ending, ...] = ()
    refusal: str | None = None

    @property
    def share(self) -> float:
        """Of the step's multiply-adds, those that a step on features does without."""
        return self.multiply_adds / self.step_multiply_adds if self.step_multiply_adds else 0.0

    def bytes_a_sample(self, kind: str) -> int:
        """Of all features, floats stored as `kind`."""
        return sum(bytes_a_sample(node.meta["val"], self.batch, FORMATS[kind]) for node in self.features)


def find_prefix(step: Step) -> Prefix:
    """Of a training step after all passes."""
    inputs = [node for node, value in zip(step.placeholders(), step.inputs, strict=True) if value.role is Role.INPUT]
    batch = shape_of(inputs[0])[0]
    frozen = frozen_nodes(step)
    prefix, endings = _grow(step, inputs, frozen, batch)
    total = sum(multiply_adds(node) for node in step.body.graph.nodes)
    behind = _find_cut(prefix, inputs, batch)
    computed = {node: None for node in prefix if node not in behind}
    counted = sum(multiply_adds(node) for node in computed)
    if not counted:
        return Prefix(batch, (), frozenset(), 0, total, endings, _why_nothing(step, prefix, endings))
    features = tuple(node for node in computed if any(user not in computed for user in node.users))
    return Prefix(batch, features, frozenset(computed), counted, total, endings)


def split(step: Step, prefix: Prefix) -> tuple[Step, Step]:
    """(the prefix, the training step on its features); `step` stays as it is."""
    values = {node: Value(Role.FEATURE, f"feature{index}") for index, node in enumerate(prefix.features)}
    results = list(zip(step.results(), step.outputs, strict=True))
    before, behind = nodes_above(prefix.features), nodes_above(step.results(), set(prefix.features))
    doors = dict(zip(step.placeholders(), step.inputs, strict=True))
    calls = [node for node in step.body.graph.nodes if node.op == "call_function"]
    head = {node: value for node, value in doors.items() if value.role is Role.INPUT or node in before}
    tail = values | {
        node: value
        for node, value in doors.items()
        if value.role is not Role.INPUT and (node in behind or not step.is_frozen(value))
    }
    return (
        _assemble(step, head, [node for node in calls if node in before], list(values.items())),
        _assemble(step, tail, [node for node in calls if node in behind], results),
    )


def fingerprint(features: Step, version: str) -> str:
    """Of what features depend on: the program, the constants it reads, the version that compiled it."""
    digest = hashlib.sha256(version.encode())
    names: dict[fx.Node, str] = {}
    for node, value in zip(features.placeholders(), features.inputs, strict=True):
        names[node] = f"p{len(names)}"
        digest.update(f"{names[node]} {_type(node)}\n".encode())
        if value.name in features.tensors and value.role is not Role.INPUT:
            digest.update(features.tensors[value.name].detach().contiguous().numpy().tobytes())
    for node in features.body.graph.nodes:
        if node.op == "call_function":
            names[node] = f"n{len(names)}"
            call = fx.map_arg((node.args, node.kwargs), lambda arg: _Name(names[arg]))
            digest.update(f"{names[node]} = {node.target}{call} {_type(node)}\n".encode())
    digest.update(" ".join(names[node] for node in features.results()).encode())
    return digest.hexdigest()


class _Name(str):
    """Prints without quotes, as a node does."""

    __slots__ = ()
    __repr__ = str.__str__


def _type(node: fx.Node) -> str:
    values = node.meta["val"]
    return " ".join(
        f"{value.dtype}{tuple(value.shape)}" for value in (values if isinstance(values, tuple) else [values])
    )


def _grow(
    step: Step, inputs: list[fx.Node], frozen: set[fx.Node], batch: int
) -> tuple[dict[fx.Node, None], tuple[Ending, ...]]:
    """The nodes that can be computed once a sample, in order, and where that ends although nothing trained is read."""
    samples = Samples(step, batch)
    samples.apart.update(inputs)
    prefix = dict.fromkeys(inputs)
    random = _random_nodes(step)
    endings: dict[str, Ending] = {}
    for node in step.body.graph.nodes:
        if node.op != "call_function" or node in frozen or not prefix.keys() & set(node.all_input_nodes):
            continue
        if all(arg in prefix or arg in frozen for arg in node.all_input_nodes):
            reason = samples.why_not_apart(node)
            if reason is None:
                prefix[node] = None
            else:
                where = _place(step, node)
                endings.setdefault(where, Ending(where, reason, _remedy(step, where)))
        elif random.intersection(node.all_input_nodes):
            where = _place(step, node)
            endings.setdefault(
                where, Ending(where, "random numbers are drawn in every step", f"leave out {option('dropout')}")
            )
    return prefix, tuple(endings.values())


def _remedy(step: Step, where: str) -> str:
    if any(name.startswith(f"{where}.") for name in step.updated_buffers):
        return f"{option('batchnorm', 'eval', where)} lets it go on"
    return "features are taken before it"


def _find_cut(prefix: dict[fx.Node, None], inputs: list[fx.Node], batch: int) -> set[fx.Node]:
    """What of the prefix the suffix computes for itself, such that features and work cost least together."""
    everything = 1 + sum(bytes_a_sample(node.meta["val"], batch) for node in prefix if _is_storable(node, batch))
    everything += sum(multiply_adds(node) for node in prefix)
    graph = networkx.DiGraph()
    graph.add_node("sink")
    for node in prefix:
        size = bytes_a_sample(node.meta["val"], batch) if _is_storable(node, batch) else everything
        again = everything if node in inputs else multiply_adds(node) // batch // A_BYTE
        graph.add_edge("source", ("in", node), capacity=again)
        graph.add_edge(("in", node), ("out", node), capacity=size)
        for user in node.users:
            graph.add_edge(("out", node), ("in", user) if user in prefix else "sink", capacity=everything)
    _, (_, behind) = networkx.minimum_cut(graph, "source", "sink")
    return {node for node in prefix if ("in", node) in behind}


def _is_storable(node: fx.Node, batch: int) -> bool:
    value = node.meta["val"]
    return isinstance(value, Tensor) and value.numel() % batch == 0


def _assemble(
    step: Step, doors: dict[fx.Node, Value], calls: Iterable[fx.Node], outputs: list[tuple[fx.Node, Value]]
) -> Step:
    """A step of its own out of some of another's nodes."""
    graph = fx.Graph()
    new: dict[fx.Node, fx.Node] = {}
    for node, value in doors.items():
        new[node] = graph.placeholder(value.name if value.role is Role.FEATURE else node.name)
        new[node].meta["val"] = node.meta["val"]
    for node in calls:
        new[node] = graph.node_copy(node, new.__getitem__)
    graph.output(tuple(new[node] for node, _ in outputs))
    body = Body(step.body, graph)
    tensors, layouts = dict(step.tensors), dict(step.layouts)
    part = Step(
        body, list(doors.values()), [value for _, value in outputs], step.plan, tensors, step.updated_buffers, layouts
    )
    fault = find_fault(part)
    if fault is not None:
        raise ContractError(f"the cut after the frozen prefix left {fault}")
    return part


def _random_nodes(step: Step) -> set[fx.Node]:
    """Random numbers, and what is made from them alone."""
    random: set[fx.Node] = set()
    for node in step.body.graph.nodes:
        args = node.all_input_nodes
        if node.target is gf.uniform.default or (node.op == "call_function" and args and random.issuperset(args)):
            random.add(node)
    return random


def _place(step: Step, node: fx.Node) -> str:
    """The nearest thing below it that has a name: the batch norm whose statistics it becomes, or a layer."""
    parameters = {
        each: value.name for each, value in zip(step.placeholders(), step.inputs, strict=True) if value.role in STATE
    }
    buffers = {
        each: value.name for each, value in zip(step.results(), step.outputs, strict=True) if value.role is Role.BUFFER
    }
    seen, level = {node}, [node]
    while level:
        for each in level:
            if each in buffers:
                return buffers[each].rpartition(".")[0]
        for each in level:
            name = next((parameters[arg] for arg in each.all_input_nodes if arg in parameters), None)
            if name is not None and each is not node:
                return f"before {name.rpartition('.')[0]}"
        level = list(dict.fromkeys(user for each in level for user in each.users if user not in seen))
        seen.update(level)
    return node.name


def _why_nothing(step: Step, prefix: Collection[fx.Node], endings: tuple[Ending, ...]) -> str:
    if any(multiply_adds(node) for node in prefix):
        return (
            "computing the features again is cheaper than to read them; train fewer layers, as in"
            f" {option('layers', 1)}"
        )
    if endings:
        return f"no convolution comes before its end at {endings[0]}"
    first = step.plan.trained[0].name
    return (
        f"no convolution is frozen before '{first}', which is trained; train fewer layers, as in {option('layers', 1)}"
    )
