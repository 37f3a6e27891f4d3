"""From the final fx graph to a Relax function whose bindings are all calls of fused kernels.

TVM's own converters translate what they know; `converters` adds the gf operators and what TVM lacks.
"""

from __future__ import annotations

from typing import Any

import tvm
from torch import fx
from tvm import relax
from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

from gfcompile.codegen.converters import CONVERTERS
from gfcompile.codegen.support import Unsupported, describe
from gfcompile.errors import UserError
from gfcompile.frontend.foreign import one_line
from gfcompile.graph.crossing import is_view_of_input
from gfcompile.graph.shapes import shape_of
from gfcompile.step import Role, Step

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
    module, unsupported = translate(step)
    if unsupported:
        listing = " | ".join(map(str, unsupported))
        raise UserError(f"model: no translation for {listing}; `gfcompile check` lists this without compiling")
    return tvm.transform.Sequential([make() for make in FUSION])(module)


def translate(step: Step) -> tuple[tvm.IRModule, list[Unsupported]]:
    """The graph in Relax operators and gf kernels, before fusion, and what could not be translated.

    Forward and backward are two dataflow blocks: fusion stays within each, so what the graph computes in the forward
    pass to let a tensor die is not moved after the loss.
    """
    importer = ExportedProgramImporter()
    importer.update_convert_map(CONVERTERS)
    parameters = {node.name: _parameter(node) for node in step.placeholders()}
    builder = importer.block_builder = relax.BlockBuilder()
    *body, output = step.body.graph.nodes
    forward, backward = _halves(step, body)
    failures: dict[fx.Node, str | None] = {}
    with builder.function(ENTRY, params=list(parameters.values())):
        for node in step.placeholders():
            importer.env[node] = parameters[node.name]
        for part, rest in ((forward, backward), (backward, [])):
            with builder.dataflow():
                for node in part:
                    if node.target.__name__ not in importer.convert_map:
                        failures[node], importer.env[node] = None, _stand_in(builder, node)
                    elif node.target.__name__ in CONVERTERS:
                        _convert(importer, node)  # ours: a failure is a bug
                    else:
                        try:
                            _convert(importer, node)
                        except Exception as error:  # noqa: BLE001 - TVM's converters raise anything; all are reported
                            failures[node], importer.env[node] = one_line(error), _stand_in(builder, node)
                needed = {arg for node in [*rest, output] for arg in node.all_input_nodes}
                for node in part:
                    if node in needed:
                        importer.env[node] = builder.emit_output(importer.env[node])
        results = [importer.env[node] for node in step.results()]
        builder.emit_func_output(builder.emit(relax.Tuple(results)))
    return builder.get(), describe(step, list(failures.items()))


def _stand_in(builder: relax.BlockBuilder, node: fx.Node) -> Any:
    """Something of the right shapes, so that the rest can be looked at too."""
    values = node.meta["val"]
    zeros = [
        builder.emit(relax.op.zeros(tuple(map(int, value.shape)), str(value.dtype).removeprefix("torch.")))
        for value in (values if isinstance(values, (tuple, list)) else [values])
    ]
    return relax.Tuple(zeros) if isinstance(values, (tuple, list)) else zeros[0]


def _convert(importer: ExportedProgramImporter, node: fx.Node) -> None:
    name = node.target.__name__
    converter = importer.convert_map[name]
    importer.env[node] = converter(node, importer) if name in CONVERTERS else converter(node)


def _halves(step: Step, body: list[fx.Node]) -> tuple[list[fx.Node], list[fx.Node]]:
    """Calls up to the loss, and those after it. Reshaped parameters that both read are made again in the second."""
    calls = [node for node in body if node.op == "call_function"]
    losses = [node for node, value in zip(step.results(), step.outputs, strict=True) if value.role is Role.LOSS]
    if not losses:
        return calls, []
    boundary = calls.index(losses[0]) + 1
    forward, backward = calls[:boundary], calls[boundary:]
    read_behind = {arg for node in backward for arg in node.all_input_nodes}
    again = [node for node in forward if node in read_behind and is_view_of_input(node)]
    return forward, [*again, *backward]


def _parameter(node: fx.Node) -> relax.Var:
    dtype = str(node.meta["val"].dtype).removeprefix("torch.")
    return relax.Var(node.name, relax.TensorType(shape_of(node), dtype))
