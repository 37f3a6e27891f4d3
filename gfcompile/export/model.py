"""A step's graph as an ONNX model: its inputs and outputs are the graph's, by role and name."""

from __future__ import annotations

import json
from typing import Any

from onnx import ModelProto, helper
from torch import fx

from gfcompile.export.emitter import IR_VERSION, OPSET, TYPES, Value
from gfcompile.export.functions import DOMAIN
from gfcompile.export.writer import UNTRANSLATED, GraphWriter
from gfcompile.step import Step

PRODUCER = "gfcompile"


def write_graph(step: Step, title: str) -> ModelProto:
    """Parameters are inputs, so a file holds no weights.

    Operators without a translation are nodes without a body in a domain of their own; the model's description and its
    metadata list them, and all others run in any ONNX runtime.
    """
    inputs = {
        node: Value.of(f"{value.role}/{value.name}", node.meta["val"])
        for node, value in zip(step.placeholders(), step.inputs, strict=True)
    }
    taken = {value.name for value in inputs.values()}
    outputs = [f"{value.role}/{value.name}" for value in step.outputs]
    outputs = [f"updated/{name}" if name in taken else name for name in outputs]
    return make_model(title, GraphWriter(name_results(step, outputs)), step, inputs, outputs)


def name_results(step: Step, names: list[str]) -> dict[fx.Node, str]:
    """Nodes that are results, by the name of the first result that each is."""
    found: dict[fx.Node, str] = {}
    for node, name in zip(step.results(), names, strict=True):
        if node.op != "placeholder":
            found.setdefault(node, name)
    return found


def make_model(
    title: str, writer: GraphWriter, step: Step, inputs: dict[fx.Node, Value], outputs: list[str]
) -> ModelProto:
    """Write the body between the given doors."""
    known: dict[fx.Node, Any] = dict(inputs)
    writer.write(step.body, known)
    doors = []
    for node, name in zip(step.results(), outputs, strict=True):
        value = known[node]
        if value.name != name:
            writer.to.copy(value, name)
        doors.append(Value(name, value.shape, value.dtype))
    for node in writer.to.nodes:
        node.name = node.output[0]
    graph = helper.make_graph(
        writer.to.nodes,
        title,
        [_door(value) for value in inputs.values()],
        [_door(value) for value in doors],
        writer.to.constants,
        value_info=[info for info in writer.infos if info.name not in set(outputs)],
    )
    ours = {DOMAIN: writer.functions, UNTRANSLATED: writer.untranslated}
    domains = {"": OPSET, **{domain: 1 for domain, used in ours.items() if used}}
    model = helper.make_model(
        graph,
        functions=list(writer.functions.values()),
        opset_imports=[helper.make_opsetid(domain, version) for domain, version in domains.items()],
        ir_version=IR_VERSION,
        producer_name=PRODUCER,
        doc_string=title,
    )
    if writer.untranslated:
        model.doc_string += f"\nwithout a body: {', '.join(writer.untranslated)}"
        helper.set_model_props(model, {UNTRANSLATED: json.dumps(list(writer.untranslated))})
    return model


def _door(value: Value) -> Any:
    return helper.make_tensor_value_info(value.name, TYPES[value.dtype], value.shape)
