"""From the final fx graph to a Relax function whose bindings are all calls of fused kernels.

TVM's own converters translate what they know; `converters.py` adds the gf operators and what TVM lacks.
"""

from __future__ import annotations

from typing import Any

import tvm
from torch import fx
from tvm import relax
from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

from gfcompile.codegen.converters import CONVERTERS
from gfcompile.errors import UserError
from gfcompile.passes.base import shape_of
from gfcompile.passes.select import layer_of
from gfcompile.step import Step

ENTRY = "main"
FUSION = (
    relax.transform.LegalizeOps,
    relax.transform.AnnotateTIROpPattern,
    relax.transform.FoldConstant,
    relax.transform.FuseOps,
    relax.transform.FuseTIR,
    relax.transform.DeadCodeElimination,
)


def lower(step: Step) -> tvm.IRModule:
    """The step's graph as a Relax module: `main` takes the signature's inputs and returns a tuple of its outputs."""
    _check_operators(step)
    return tvm.transform.Sequential([make() for make in FUSION])(translate(step))


def translate(step: Step) -> tvm.IRModule:
    """The graph in Relax operators and gf kernels, before fusion."""
    importer = ExportedProgramImporter()
    importer.update_convert_map(CONVERTERS)
    parameters = {node.name: _parameter(node) for node in step.placeholders()}
    builder = importer.block_builder = relax.BlockBuilder()
    with builder.function(ENTRY, params=list(parameters.values())):
        with builder.dataflow():
            nodes = list(step.body.graph.nodes)
            results = importer._translate_fx_graph(step.body, nodes, parameters, set(CONVERTERS))
            output = builder.emit_output(relax.Tuple(list(results)))
        builder.emit_func_output(output)
    return builder.get()


def _parameter(node: fx.Node) -> relax.Var:
    dtype = str(node.meta["val"].dtype).removeprefix("torch.")
    return relax.Var(node.name, relax.TensorType(shape_of(node), dtype))


def _check_operators(step: Step) -> None:
    """Name every operator without a translation at once, with the layers around it."""
    known = ExportedProgramImporter().create_convert_map().keys() | CONVERTERS.keys()
    missing: dict[str, list[str]] = {}
    for node in step.body.graph.nodes:
        if node.op == "call_function" and node.target.__name__ not in known:
            missing.setdefault(node.target.__name__, []).append(_nearest_layer(step, node))
    if missing:
        listing = ", ".join(
            f"{name} (near {', '.join(sorted(set(where))[:3])})" for name, where in sorted(missing.items())
        )
        raise UserError(
            f"model: no lowering for {listing}; train fewer layers, or replace these operations in the model"
        )


def _nearest_layer(step: Step, node: fx.Node) -> str:
    """The layer whose weight is read soonest above the node."""
    seen: set[Any] = set()
    queue = [node]
    while queue:
        current = queue.pop(0)
        for arg in current.all_input_nodes:
            layer = layer_of(step, arg) if arg.op == "placeholder" else None
            if layer:
                return layer
            if arg not in seen:
                seen.add(arg)
                queue.append(arg)
    return "the input"
